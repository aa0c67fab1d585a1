#include "broker/usage_file.hpp"

#include "base/log.hpp"
#include "os/text_file.hpp"
#include "wire/codec.hpp"

#include <unistd.h>

namespace broker {
namespace {

constexpr std::size_t file_bytes_max = 16U << 20U;
constexpr std::chrono::seconds keep_every(5);

struct File {
  std::vector<DayUse> days;

  static bool required(std::string_view) { return true; }
};
BOOST_DESCRIBE_STRUCT(File, (), (days))

}  // namespace

base::Result<void> UsageFile::load() {
  if (::access(path_.c_str(), F_OK) != 0) return {};
  auto const text = os::read_text(path_, file_bytes_max);
  if (!text) return std::unexpected(text.error());
  auto file = wire::decode_text<File>(*text, wire::UnknownKeys::ignore, file_bytes_max);
  if (!file) return base::passing(file, "read what was used today");
  ledger_.restore(file->days);
  return {};
}

async::Task<void> UsageFile::keep() {
  auto const uses = ledger_.day_uses();
  if (uses == kept_) co_return base::Result<void>();
  auto write = [path = path_, text = wire::encode_text(File{ledger_.days()})] {
    return os::write_text_durably(path, text);
  };
  auto const kept = co_await async::blocking(std::move(write));
  if (kept) kept_ = uses;
  co_return kept;
}

boost::asio::awaitable<void> UsageFile::run() {
  for (;;) {
    co_await async::sleep_for(keep_every);
    auto const kept = co_await keep();
    if (!kept)
      base::log::error("usage_not_kept",
                       {{"what", kept.error().message()}, {"detail", kept.error().detail()}});
    // Cancelled while it was written: nothing wakes the next sleep.
    auto const state = co_await boost::asio::this_coro::cancellation_state;
    if (state.cancelled() != boost::asio::cancellation_type::none) co_return;
  }
}

}  // namespace broker
