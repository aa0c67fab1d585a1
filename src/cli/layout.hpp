#pragma once

#include "cli/process.hpp"
#include "wire/config.hpp"

#include <array>

/// Who owns what on a host: the system users, the groups of each socket's clients, and the
/// directories. Everything is created when missing and put right when it differs; nothing is
/// removed.
namespace cli {

/// A group per socket directory: its members may connect. Apart from the users' own groups, so that
/// a client of a program's socket gains no access to that program's files.
inline constexpr std::string_view worker_clients = "space-to-worker";
inline constexpr std::string_view api_clients = "space-to-api";
inline constexpr std::string_view proxy_clients = "space-to-proxy";
inline constexpr std::string_view broker_clients = "space-to-broker";
inline constexpr std::string_view database_clients = "space-to-db";

/// The programs that the supervisor runs, in the order in which they start.
enum class Service : std::uint8_t { database, broker, hostd, worker, api, controller, proxy };
inline constexpr std::array all_services = {Service::database,
                                            Service::broker,
                                            Service::hostd,
                                            Service::worker,
                                            Service::api,
                                            Service::controller,
                                            Service::proxy};
std::string_view name_of(Service service) noexcept;

struct User {
  uid_t uid = 0;
  gid_t gid = 0;
};

base::Result<User> find_user(std::string const& name);
base::Result<gid_t> find_group(std::string const& name);

/// Creates users and groups that are missing. Returns how many were made.
base::Result<int> ensure_users(wire::Config const& config);

/// What a service runs as: its user, its group, and the client groups of the sockets it may use.
/// Nothing for hostd, which stays root.
base::Result<std::optional<Identity>> identity_of(Service service, wire::Config const& config);

/// One directory or file as it has to be.
struct Place {
  std::string path;
  std::string owner;
  std::string group;
  mode_t mode = 0755;
};

/// Pure: the directories below data_dir and run_dir, parents first.
std::vector<Place> plan_directories(wire::Config const& config);
base::Result<void> ensure_directory(Place const& place);
base::Result<void> ensure_directories(wire::Config const& config);

/// Writes the whole file under another name, syncs it and renames it: readers see the old or the
/// new one.
base::Result<void> write_file(
    std::string const& path, std::string_view text, mode_t mode, uid_t uid = 0, gid_t gid = 0);
base::Result<std::string> read_file(std::string const& path, std::size_t bytes_max = 1 << 20);

}  // namespace cli
