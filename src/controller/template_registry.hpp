#pragma once

#include "store/store.hpp"

#include <set>
#include <string>
#include <vector>

/// Template builds that are found on a node become rows: `base` and whatever else lies in the pool.
namespace controller {

/// What `<pool>/templates/<build>/manifest.json` says. Unknown keys are kept in the row as they
/// are.
struct Manifest {
  std::string name;
  std::string build;
  std::string created_at;  // RFC 3339 in UTC: sorts as text
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;
  std::string default_user = "user";
  std::string default_workdir;
  store::json::value whole;
};

/// invalid_argument when it is none of ours: wrong name, another build than its folder, absurd
/// sizes.
base::Result<Manifest> parse_manifest(std::string const& build, std::string_view text);

class TemplateRegistry {
 public:
  TemplateRegistry(store::Store& store, std::string pool) : store_(store), pool_(std::move(pool)) {}

  /// Registers those of `builds` that are new, oldest first, so that the newest build of a name
  /// ends up as its tag `default`. A build older than the present default gets a tag of its own
  /// instead. True when all are known now; what could not be read or written is tried at the next
  /// call.
  store::asio::awaitable<bool> consider(std::vector<std::string> builds);

 private:
  async::Task<void> add(Manifest manifest);
  store::Store& store_;
  std::string pool_;
  std::set<std::string> known_;
  std::set<std::string> complained_;
};

}  // namespace controller
