#pragma once

#include "audit/chain.hpp"
#include "audit/retention.hpp"
#include "base/clock.hpp"
#include "wire/audit.hpp"

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

/// Signed checkpoints: what the log was, said by the worker with a key of its node and kept by the
/// control plane, where whoever can write the log cannot write.
namespace audit {

/// What a signature covers.
std::string signed_text(wire::AuditCheckpoint const& checkpoint);
std::string signed_text(std::string const& node, Retired const& retired);
/// Whether this key signed it; false also for what has no proper form.
bool is_signed(wire::AuditCheckpoint const& checkpoint, std::string const& public_key);
bool is_signed(std::string const& node, Retired const& retired, std::string const& public_key);
bool is_public_key(std::string const& text);

class SigningKey {
 public:
  /// A file of 32 bytes, 0600, made when missing. A file of another length, owner or mode is
  /// refused.
  static base::Result<SigningKey> open(std::string const& path);

  std::string const& public_key() const noexcept { return public_key_; }

  base::Result<void> sign(wire::AuditCheckpoint& checkpoint) const;
  base::Result<void> sign(std::string const& node, Retired& retired) const;

 private:
  base::Result<std::string> signature_of(std::string const& text) const;

  struct Key;
  std::shared_ptr<Key const> key_;
  std::string public_key_;
};

/// The worker's: makes one every 1,000 records or ten seconds, at its start and at its end.
/// Remembers the latest of them, and the very last one on disk beside the log. The beginning that
/// they state is what retention noted with this key, never what happens to be on disk: where lines
/// are missing that retention did not take, none is made, and tell() says why. Any thread; reads
/// and writes files.
class Checkpoints {
 public:
  /// `directory`: the log's. Its last one of a former life is told, too.
  static base::Result<std::shared_ptr<Checkpoints>> open(std::string node,
                                                         std::string const& key_path,
                                                         std::string directory);

  /// The log's retention signs with this key from now on; for as long as either lives.
  void attend(Log& log) const;
  /// What is on disk now. Makes a checkpoint when one is due, or in any case with `now`.
  base::Result<void> note(Log const& log, bool now = false);
  /// Makes one when time has come, as nobody writes. `after` = 0: the control plane knows nothing
  /// of this node, or an administrator has looked, and what is there is the beginning from now on.
  base::Result<wire::AuditCheckpoints> tell(std::uint64_t after);

 private:
  Checkpoints(std::string node, SigningKey key, std::string directory)
      : node_(std::move(node)), key_(std::move(key)), directory_(std::move(directory)) {}

  base::Result<void> make();
  base::Result<std::uint64_t> beginning() const;
  base::Result<void> take_what_is_there() const;
  bool due() const;
  std::string hash_at(std::uint64_t sequence);

  std::string node_;
  SigningKey key_;
  std::string directory_;
  std::mutex mutex_;
  std::uint64_t head_ = 0;
  std::string head_hash_;
  std::deque<wire::AuditCheckpoint> made_;
  std::size_t former_ = 0;  // how many of them are of a former life
  base::SteadyTime made_at_{};
  std::pair<std::uint64_t, std::string> asked_;  // the last line that was looked up on disk
};

/// What the control plane knows of a node.
struct Known {
  std::string public_key;
  std::optional<wire::AuditCheckpoint> latest;
};

struct Judged {
  std::vector<wire::AuditCheckpoint> good;  // those that go on from what is known
  std::string problem;                      // "" = all did
};

/// Pure: whether what a node tells goes on from what is known of it. `told` answers
/// `after` = known.latest's last number.
Judged judge(std::string const& node, Known const& known, wire::AuditCheckpoints const& told);

/// What the control plane's checkpoints say of a log on disk.
struct Comparison {
  std::uint64_t confirmed_through = 0;  // up to this number it is what it was
  std::uint64_t retired_through = 0;    // the control plane was told that retention took these
  std::uint64_t unconfirmed = 0;        // lines behind the last checkpoint
  std::size_t checkpoints = 0;
  std::string problem;  // "" = they agree
};

struct Compared {
  Verdict verdict;
  Comparison comparison;
};

/// verify(), each checkpoint's signature, and that its line is still there as it was, or was taken
/// by retention as a later checkpoint says.
base::Result<Compared> verify_against(std::string const& directory,
                                      std::vector<wire::AuditCheckpoint> const& kept,
                                      std::string const& public_key);

}  // namespace audit
