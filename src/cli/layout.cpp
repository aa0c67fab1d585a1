#include "cli/layout.hpp"

#include <sys/stat.h>

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

namespace cli {
namespace {

constexpr std::array client_groups = {
    worker_clients, api_clients, proxy_clients, broker_clients, database_clients};

base::Result<void> ensure_group(std::string const& name, int& made) {
  if (find_group(name)) return {};
  auto done = run_checked({find_program("groupadd"), "--system", name});
  // Two installations may start at the same moment: what counts is that it exists.
  if (!done && !find_group(name)) return base::passing(done, "make the group " + name);
  ++made;
  return {};
}

base::Result<void> ensure_user(std::string const& name, int& made) {
  if (find_user(name)) return {};
  std::vector<std::string> arguments = {find_program("useradd"),
                                        "--system",
                                        "--no-create-home",
                                        "--home-dir",
                                        "/nonexistent",
                                        "--shell",
                                        "/usr/sbin/nologin"};
  if (find_group(name))
    arguments.insert(arguments.end(), {"--gid", name});
  else
    arguments.emplace_back("--user-group");
  arguments.push_back(name);
  auto done = run_checked(std::move(arguments));
  if (!done && !find_user(name)) return base::passing(done, "make the user " + name);
  ++made;
  return {};
}

std::string user_of(Service service, wire::Config const& config) {
  switch (service) {
    case Service::database:
      return config.database_user;
    case Service::broker:
      return config.broker_user;
    case Service::hostd:
      return "root";
    case Service::worker:
      return config.worker_user;
    case Service::api:
      return config.api_user;
    case Service::controller:
      return config.controller_user;
    case Service::proxy:
      return config.proxy_user;
  }
  return {};
}

std::vector<std::string_view> sockets_used_by(Service service) {
  switch (service) {
    case Service::database:
    case Service::broker:
    case Service::hostd:
      return {};
    case Service::worker:
      return {broker_clients};
    case Service::api:
      return {worker_clients, proxy_clients, broker_clients, database_clients};
    case Service::controller:
      return {worker_clients, api_clients, database_clients};
    case Service::proxy:
      return {worker_clients, api_clients};
  }
  return {};
}

}  // namespace

std::string_view name_of(Service service) noexcept {
  switch (service) {
    case Service::database:
      return "postgres";
    case Service::broker:
      return "space-broker";
    case Service::hostd:
      return "space-hostd";
    case Service::worker:
      return "space-worker";
    case Service::api:
      return "space-api";
    case Service::controller:
      return "space-controller";
    case Service::proxy:
      return "space-proxy";
  }
  return "?";
}

base::Result<User> find_user(std::string const& name) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> buffer{};
  getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (!found) return base::fail(base::Code::not_found, "there is no user " + name);
  return User{entry.pw_uid, entry.pw_gid};
}

base::Result<gid_t> find_group(std::string const& name) {
  group entry{};
  group* found = nullptr;
  std::vector<char> buffer(1U << 20);  // a group with many members is long
  getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (!found) return base::fail(base::Code::not_found, "there is no group " + name);
  return entry.gr_gid;
}

base::Result<int> ensure_users(wire::Config const& config) {
  int made = 0;
  for (auto const group : client_groups) {
    auto done = ensure_group(std::string(group), made);
    if (!done) return base::passing(done);
  }
  for (auto const service : all_services) {
    if (service == Service::hostd) continue;
    auto done = ensure_user(user_of(service, config), made);
    if (!done) return base::passing(done);
  }
  return made;
}

base::Result<std::optional<Identity>> identity_of(Service service, wire::Config const& config) {
  if (service == Service::hostd) return std::optional<Identity>();
  auto user = find_user(user_of(service, config));
  if (!user) return base::passing(user);
  Identity identity{user->uid, user->gid, {}};
  for (auto const group : sockets_used_by(service)) {
    auto gid = find_group(std::string(group));
    if (!gid) return base::passing(gid);
    identity.supplementary.push_back(*gid);
  }
  return std::optional(std::move(identity));
}

std::vector<Place> plan_directories(wire::Config const& config) {
  auto const data = [&](char const* below) { return config.data_dir + below; };
  auto const run = [&](char const* below) { return config.run_dir + below; };
  // Set-group-id: a socket made inside takes the directory's group, whatever group its program has.
  auto const sockets = [&](char const* below, std::string owner, std::string_view clients) {
    return Place{run(below), std::move(owner), std::string(clients), 02750};
  };
  return {
      {config.data_dir, "root", "root", 0755},
      {data("/log"), "root", "root", 0750},
      {data("/ca"), "root", "root", 0755},
      {data("/programs"), "root", "root", 0755},
      {data("/guest"), "root", "root", 0755},
      {data("/api"), config.api_user, config.api_user, 0700},
      {data("/worker"), config.worker_user, config.worker_user, 0700},
      {data("/broker"), config.broker_user, config.broker_user, 0700},
      {data("/postgres"), config.database_user, config.database_user, 0700},
      {config.run_dir, "root", "root", 0755},
      // Its one client is the worker, whose own group it has.
      {run("/hostd"), "root", config.worker_user, 0750},
      sockets("/worker", config.worker_user, worker_clients),
      sockets("/api", config.api_user, api_clients),
      sockets("/proxy", config.proxy_user, proxy_clients),
      sockets("/broker", config.broker_user, broker_clients),
      // Gateways have no group: hostd makes their connections.
      sockets("/broker-use", config.broker_user, config.broker_user),
      sockets("/postgres", config.database_user, database_clients),
  };
}

base::Result<void> ensure_directory(Place const& place) {
  auto owner = find_user(place.owner);
  if (!owner) return base::passing(owner);
  auto group = find_group(place.group);
  if (!group) return base::passing(group);
  if (mkdir(place.path.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail_errno("make the directory " + place.path);
  os::Fd const directory(open(place.path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory) return base::fail_errno("open the directory " + place.path);
  if (fchown(directory.get(), owner->uid, *group) != 0)
    return base::fail_errno("set the owner of " + place.path);
  if (fchmod(directory.get(), place.mode) != 0)
    return base::fail_errno("set the mode of " + place.path);
  return {};
}

base::Result<void> ensure_directories(wire::Config const& config) {
  for (auto const& place : plan_directories(config)) {
    auto done = ensure_directory(place);
    if (!done) return base::passing(done);
  }
  return {};
}

base::Result<void> write_file(
    std::string const& path, std::string_view text, mode_t mode, uid_t uid, gid_t gid) {
  std::string const temporary = path + ".new";
  unlink(temporary.c_str());
  os::Fd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return base::fail_errno("create " + temporary);
  while (!text.empty()) {
    auto const wrote = write(file.get(), text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return base::fail_errno("write " + temporary);
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if ((uid != 0 || gid != 0) && fchown(file.get(), uid, gid) != 0)
    return base::fail_errno("set the owner of " + temporary);
  if (fchmod(file.get(), mode) != 0) return base::fail_errno("set the mode of " + temporary);
  auto synced = file.sync_and_close();
  if (!synced) return base::passing(synced, "write " + temporary);
  if (rename(temporary.c_str(), path.c_str()) != 0) return base::fail_errno("rename " + temporary);
  return {};
}

base::Result<std::string> read_file(std::string const& path, std::size_t bytes_max) {
  os::Fd const file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && errno == ENOENT)
    return base::fail(base::Code::not_found, "there is no file " + path);
  if (!file && errno == EACCES) return base::fail(base::Code::denied, "may not read " + path);
  if (!file) return base::fail_errno("open " + path);
  std::string text;
  std::array<char, 65536> buffer{};
  for (;;) {
    auto const got = read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno("read " + path);
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    if (text.size() > bytes_max) return base::fail(base::Code::too_large, path + " is too long");
  }
}

}  // namespace cli
