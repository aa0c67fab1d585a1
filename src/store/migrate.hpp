#pragma once

#include "base/result.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Numbered migrations, embedded in the binary from migrations/NNNN_what.sql: forward only, one
/// transaction each, under an advisory lock, with their checksums recorded.
namespace store {

struct Migration {
  int number = 0;
  std::string_view name;  // "0001_first.sql"
  std::string_view sql;
};

std::span<Migration const> all_migrations();

struct Migrated {
  std::vector<std::string> applied;  // names, in order
  int version = 0;                   // the number of the last one that is applied now
};

/// Brings the database up to date; nothing to do is fine. Makes the database named in `conninfo`
/// when it is missing and the role may. Refuses when an applied migration is not the one of this
/// binary (another checksum), or is newer than all of ours. Blocking.
base::Result<Migrated> migrate(std::string const& conninfo);
/// The same with other migrations, for tests.
base::Result<Migrated> migrate(std::string const& conninfo, std::span<Migration const> migrations);

}  // namespace store
