#include "worker/reflections.hpp"

#include "os/text_file.hpp"
#include "wire/codec.hpp"

#include <algorithm>
#include <map>

#include <unistd.h>

namespace worker {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kept_max = 256;
constexpr std::size_t file_bytes_max = 1U << 20U;

struct File {
  std::vector<wire::Reflected> reflected;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(File, (), (reflected))

}  // namespace

Reflections::Reflections(asio::any_io_executor executor, std::string path)
    : path_(std::move(path)), writing_(executor), taken_(std::move(executor)) {}

async::Task<void> Reflections::open() {
  auto text = co_await async::blocking([path = path_]() -> base::Result<std::string> {
    if (::access(path.c_str(), F_OK) != 0) return std::string();
    return os::read_text(path, file_bytes_max);
  });
  if (!text) co_return base::passing(text, "read which credentials came back");
  if (text->empty()) co_return base::Result<void>();
  auto file = wire::decode_text<File>(*text, wire::UnknownKeys::ignore, file_bytes_max);
  if (!file) {
    auto why = file.error().message();
    co_return base::fail(base::Code::internal,
                         "the list of credentials that came back is damaged; quarantine those that "
                         "the audit log names, then remove " +
                             path_,
                         std::move(why));
  }
  all_ = std::move(file->reflected);
  co_return base::Result<void>();
}

void Reflections::note(wire::Reflected reflected) {
  std::erase_if(all_, [&](wire::Reflected const& one) {
    return one.credential == reflected.credential && one.version == reflected.version;
  });
  all_.push_back(std::move(reflected));
  if (all_.size() > kept_max) forget_one();
  dirty_ = true;
}

/// The oldest of the sandbox that has most: whoever lets many of his own come back at once does not
/// push out another's.
void Reflections::forget_one() {
  std::map<std::string_view, std::size_t> of;
  for (auto const& one : all_)
    ++of[one.sandbox];
  auto const most = std::ranges::max_element(of, {}, [](auto const& pair) { return pair.second; });
  all_.erase(std::ranges::find(all_, most->first, &wire::Reflected::sandbox));
}

async::Task<void> Reflections::keep() {
  auto const turn = co_await writing_.enter();
  while (dirty_) {
    dirty_ = false;
    auto const text = wire::encode_text(File{all_});
    auto written = co_await async::blocking(
        [path = path_, text] { return os::write_text_durably(path, text); });
    if (!written) {
      dirty_ = true;
      co_return base::passing(written, "note which credentials came back");
    }
  }
  co_return base::Result<void>();
}

async::Task<void> Reflections::taken(wire::Reflected reflected) {
  // Of one that came back once more since, the API knows but the first time.
  auto const gone = std::erase_if(all_, [&](wire::Reflected const& one) {
    return one.credential == reflected.credential && one.version == reflected.version &&
           one.at_us == reflected.at_us;
  });
  if (gone == 0) co_return base::Result<void>();
  dirty_ = true;
  taken_.notify_all();
  // What stays in the file when this fails is told once more by the next worker.
  co_return co_await keep();
}

bool Reflections::holds(std::string const& credential, std::uint32_t version) const noexcept {
  return std::ranges::any_of(all_, [&](wire::Reflected const& one) {
    return one.credential == credential && one.version == version;
  });
}

}  // namespace worker
