#include "cli/images.hpp"

#include "cli/layout.hpp"

#include <sys/file.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;

bool is_file(std::string const& path) {
  return access(path.c_str(), F_OK) == 0;
}

/// Runs one of the scripts with its progress shown; the last line that was no progress is the
/// reason.
base::Result<void> run_script(std::vector<std::string> arguments, Progress& progress) {
  auto environment = plain_environment();
  // How this host reaches its package mirrors.
  for (char const* name : {"http_proxy", "https_proxy", "no_proxy", "TMPDIR"}) {
    if (char const* value = std::getenv(name))
      environment.push_back(
          fmt::format("{}={}", name, value));  // NOLINT(concurrency-mt-unsafe): one thread
  }
  std::string last;
  Program const program{.arguments = std::move(arguments),
                        .environment = std::move(environment),
                        .signal_on_parent_death = SIGTERM};
  auto outcome = run_program(program, [&](std::string_view line) {
    if (auto const step = parse_progress(line)) {
      progress.update(step->first, step->second);
    } else {
      last = line;
    }
  });
  if (!outcome) return base::passing(outcome);
  if (outcome->exit_code == 0) return {};
  return base::fail(
      base::Code::internal,
      fmt::format("{} ended with {}: {}", program.arguments[0], outcome->exit_code, last),
      outcome->err);
}

base::Result<void> make_cache_dir(std::string const& path) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) return base::fail_errno(failed.value(), "make the directory " + path);
  return {};
}

/// Copies a directory to a place that does not exist yet, whole or not at all.
base::Result<void> copy_folder(std::string const& from, std::string const& to) {
  std::string const temporary = fmt::format("{}.{}.new", to, getpid());
  auto copied = run_checked(
      {find_program("cp"), "--archive", "--reflink=auto", "--sparse=always", from, temporary});
  if (copied && rename(temporary.c_str(), to.c_str()) == 0) return {};
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  if (!copied) return base::passing(copied);
  return is_file(to) ? base::Result<void>()
                     : base::Result<void>(base::fail_errno("put " + to + " in its place"));
}

/// One at a time over all installations of the host.
base::Result<os::Fd> lock_cache() {
  auto made = make_cache_dir(cache_dir());
  if (!made) return base::passing(made);
  os::Fd lock(open((cache_dir() + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return base::fail_errno("open the cache's lock");
  while (flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return base::fail_errno("lock the cache");
  }
  return lock;
}

base::Result<std::string> build_of_manifest(std::string const& path) {
  auto text = read_file(path);
  if (!text) return base::passing(text);
  auto manifest = wire::parse_json(*text);
  if (!manifest) return base::passing(manifest, path);
  auto const* object = manifest->if_object();
  auto const* build = object ? object->if_contains("build") : nullptr;
  if (!build || !build->is_string())
    return base::fail(base::Code::internal, path + " names no build");
  std::string name(build->as_string());
  // It becomes a folder's name.
  bool const plain = !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (!plain) return base::fail(base::Code::internal, path + " names a build that is no id");
  return name;
}

}  // namespace

std::string cache_dir() {
  return "/var/cache/space";
}

base::Result<std::string> find_images(std::string const& program_dir) {
  if (char const* given = std::getenv("SPACE_IMAGES_DIR"))
    return std::string(given);  // NOLINT(concurrency-mt-unsafe): one thread
  for (fs::path folder = program_dir; !folder.empty(); folder = folder.parent_path()) {
    auto const candidate = (folder / "images").string();
    if (is_file(candidate + "/build_guest.sh")) return candidate;
    if (folder == folder.parent_path()) break;
  }
  if (is_file("/usr/share/space/images/build_guest.sh"))
    return std::string("/usr/share/space/images");
  return base::fail(base::Code::not_found,
                    "the folder images/ was not found; set SPACE_IMAGES_DIR to it");
}

base::Result<void> ensure_guest(wire::Config const& config,
                                std::string const& images,
                                Progress& progress) {
  auto lock = lock_cache();
  if (!lock) return base::passing(lock);
  auto const ours = config.guest() + "/kernel";
  auto const cached = cache_dir() + "/kernel";
  if (!is_file(ours) && is_file(cached)) {
    auto copied = copy_folder(cached, ours);
    if (!copied) return base::passing(copied, "copy the cached guest kernel");
    std::error_code ignored;
    fs::remove(ours + "/packed", ignored);  // tells of another installation's initramfs
  }
  auto done = run_script({images + "/build_guest.sh",
                          "--out",
                          config.guest(),
                          "--agent",
                          config.program_dir + "/space-agent"},
                         progress);
  if (!done) return base::passing(done, "make the guest's kernel and initramfs");
  auto ours_key = read_file(ours + "/key");
  auto cached_key = read_file(cached + "/key");
  if (ours_key && (!cached_key || *cached_key != *ours_key)) {
    std::error_code ignored;
    fs::remove_all(cached, ignored);
    auto copied = copy_folder(ours, cached);
    if (!copied) return base::passing(copied, "cache the guest kernel");
  }
  return {};
}

base::Result<std::string> ensure_template(wire::Config const& config,
                                          std::string const& images,
                                          Progress& progress) {
  auto lock = lock_cache();
  if (!lock) return base::passing(lock);
  auto const cached = cache_dir() + "/base";
  auto done = run_script({images + "/build_base.sh", "--out", cached}, progress);
  if (!done) return base::passing(done, "build the template base");
  auto build = build_of_manifest(cached + "/manifest.json");
  if (!build) return base::passing(build);
  auto const place = config.pool() + "/templates/" + *build;
  if (is_file(place + "/disk.img")) return build;
  progress.update(99, "copying it into the pool");
  auto const temporary = place + ".new";
  std::error_code failed;
  fs::remove_all(temporary, failed);
  auto made = ensure_directory({temporary, "root", "root", 0755});
  if (!made) return base::passing(made);
  for (char const* name : {"disk.img", "manifest.json", "packages.lock"}) {
    auto copied = run_checked({find_program("cp"),
                               "--reflink=auto",
                               "--sparse=always",
                               "--preserve=timestamps",
                               fmt::format("{}/{}", cached, name),
                               fmt::format("{}/{}", temporary, name)});
    if (!copied) return base::passing(copied, "copy the template into the pool");
  }
  os::Fd const folder(open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || syncfs(folder.get()) != 0) return base::fail_errno("write the template to disk");
  fs::rename(temporary, place, failed);
  if (failed) return base::fail_errno(failed.value(), "put the template in its place");
  return build;
}

}  // namespace cli
