#include "audit/checkpoint.hpp"

#include "audit/reader.hpp"
#include "os/text_file.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>

#include <fcntl.h>
#include <unistd.h>

namespace audit {
namespace {

constexpr std::size_t hash_digits = 64;
constexpr std::size_t told_max = 256;
constexpr std::size_t problem_max = 256;
constexpr std::uint64_t records_between = 1'000;
constexpr std::chrono::seconds time_between{10};

/// The line with that number as it stands in the log, "" when it is not there.
std::string line_at(std::string const& directory, std::uint64_t after) {
  Query query;
  query.after = after;
  query.limit = 1;
  auto const page = read_page(directory, query);
  return page && !page->lines.empty() ? page->lines.front() : "";
}

std::uint64_t sequence_of(std::string_view line) {
  constexpr std::string_view head = "{\"seq\":";
  std::uint64_t out = 0;
  if (line.starts_with(head))
    std::from_chars(line.data() + head.size(), line.data() + line.size(), out);
  return out;
}

std::string_view hash_of(std::string_view line) {
  constexpr std::size_t tail = hash_digits + 2;  // and "}
  return line.size() > tail ? line.substr(line.size() - tail, hash_digits) : "";
}

std::string_view previous_of(std::string_view line) {
  constexpr std::string_view prev = ",\"prev\":\"";
  auto const at = line.find(prev);
  return at == line.npos ? "" : line.substr(at + prev.size(), hash_digits);
}

std::string checkpoint_file(std::string const& directory) {
  return directory + "/checkpoint";
}

base::Result<void> keep(std::string const& directory, wire::AuditCheckpoint const& checkpoint) {
  auto kept =
      os::write_text_durably(checkpoint_file(directory), wire::encode_text(checkpoint) + "\n");
  if (!kept) return base::passing(kept, "keep the checkpoint");
  return {};
}

}  // namespace

base::Result<std::shared_ptr<Checkpoints>> Checkpoints::open(std::string node,
                                                             std::string const& key_path,
                                                             std::string directory) {
  auto key = SigningKey::open(key_path);
  if (!key) return base::passing(key);
  std::shared_ptr<Checkpoints> out(
      new Checkpoints(std::move(node), std::move(*key), std::move(directory)));
  std::ifstream in(checkpoint_file(out->directory_));
  std::string line;
  if (in && std::getline(in, line)) {
    auto former = wire::decode_text<wire::AuditCheckpoint>(line);
    // Another key's, or a damaged one: the control plane has those before it.
    if (former && is_signed(*former, out->key_.public_key())) {
      out->made_.push_back(std::move(*former));
      out->former_ = 1;
    }
  }
  return out;
}

base::Result<void> Checkpoints::note(Log const& log, bool now) {
  std::scoped_lock const lock(mutex_);
  if (log.next_sequence() <= 1) return {};
  head_ = log.next_sequence() - 1;
  head_hash_ = log.last_hash();
  bool const known = made_.size() > former_ && made_.back().last_sequence == head_;
  if (now ? known : !due()) return {};
  return make();
}

bool Checkpoints::due() const {
  if (head_ == 0) return false;
  if (made_.size() == former_) return true;
  auto const behind = head_ - made_.back().last_sequence;
  return behind >= records_between ||
         (behind > 0 && base::system_clock().steady_now() - made_at_ >= time_between);
}

void Checkpoints::attend(Log& log) const {
  log.sign_with([node = node_, key = key_](Retired& retired) { return key.sign(node, retired); });
}

/// Conflict: the log on disk begins later, or nobody with this key says where it begins.
base::Result<std::uint64_t> Checkpoints::beginning() const {
  // The disk first: retention, which may be at work, notes before it takes away.
  auto const there = sequence_of(line_at(directory_, 0));
  auto const retired = read_retired(directory_);
  if (!retired) return base::fail(base::Code::conflict, retired.error().message());
  if (retired->through > 0 && !is_signed(node_, *retired, key_.public_key()))
    return base::fail(base::Code::conflict,
                      "what it says of its retention is not signed with this node's key");
  auto const first = retired->through + 1;
  if (there > first)
    return base::fail(
        base::Code::conflict,
        fmt::format("it begins with record {}, and retention took nothing from record {} on",
                    there,
                    first));
  // A file may still be there that is going to be taken.
  return there > 0 ? there : first;
}

base::Result<void> Checkpoints::take_what_is_there() const {
  auto const line = line_at(directory_, 0);
  Retired retired{sequence_of(line), std::string(previous_of(line)), ""};
  if (retired.through <= 1) return {};
  --retired.through;
  if (auto done = key_.sign(node_, retired); !done) return done;
  return write_retired(directory_, retired);
}

base::Result<void> Checkpoints::make() {
  wire::AuditCheckpoint one;
  one.node = node_;
  auto first = beginning();
  if (!first) return base::passing(first);
  // The latest file may be a new one without a line.
  one.first_sequence = std::min(*first, head_);
  one.last_sequence = head_;
  one.hash = head_hash_;
  one.made_at_us = std::chrono::duration_cast<std::chrono::microseconds>(
                       base::system_clock().wall_now().time_since_epoch())
                       .count();
  if (auto done = key_.sign(one); !done) return done;
  auto kept = keep(directory_, one);
  made_.push_back(std::move(one));
  made_at_ = base::system_clock().steady_now();
  if (made_.size() > told_max) {
    made_.pop_front();
    former_ -= former_ > 0 ? 1 : 0;
  }
  return kept;
}

std::string Checkpoints::hash_at(std::uint64_t sequence) {
  if (sequence == 0) return "";
  // What this process wrote it knows; everything else is looked up on disk.
  for (std::size_t i = former_ + 1; i < made_.size(); ++i)
    if (made_[i].last_sequence == sequence) return made_[i].hash;
  if (asked_.first == sequence) return asked_.second;
  auto const line = line_at(directory_, sequence - 1);
  if (sequence_of(line) != sequence) return "";
  asked_ = {sequence, std::string(hash_of(line))};
  return asked_.second;
}

base::Result<wire::AuditCheckpoints> Checkpoints::tell(std::uint64_t after) {
  std::scoped_lock const lock(mutex_);
  wire::AuditCheckpoints out;
  out.public_key = key_.public_key();
  out.hash_at_after = hash_at(after);
  // Retention may have taken that line since the latest checkpoint.
  bool const retired = after > 0 && after <= head_ && out.hash_at_after.empty();
  auto first = beginning();
  bool const accepted = !first && after == 0;
  if (accepted) {
    if (auto taken = take_what_is_there(); !taken) return base::passing(taken);
    first = beginning();
  }
  if (!first) out.problem = first.error().message();
  if (first && head_ > 0 && (due() || retired || accepted))
    if (auto made = make(); !made) return base::passing(made);
  auto begin = std::ranges::find_if(
      made_, [after](wire::AuditCheckpoint const& one) { return one.last_sequence > after; });
  if (begin == made_.end() && !made_.empty()) --begin;
  out.checkpoints.assign(begin, made_.end());
  return out;
}

Judged judge(std::string const& node, Known const& known, wire::AuditCheckpoints const& told) {
  Judged out;
  if (told.public_key != known.public_key) {
    out.problem = fmt::format(
        "it signs with another key than the one that is known, which goes on being the one");
    return out;
  }
  if (!told.problem.empty()) {
    out.problem = told.problem.substr(0, problem_max);
    return out;
  }
  auto latest = known.latest;
  bool retired = false;
  for (auto const& one : told.checkpoints) {
    if (one.node != node || !is_signed(one, known.public_key)) {
      out.problem = "a checkpoint is not signed with the key of this node";
      return out;
    }
    retired = retired || (latest && one.first_sequence > latest->last_sequence);
  }
  if (latest && told.hash_at_after != latest->hash && (!told.hash_at_after.empty() || !retired)) {
    out.problem =
        told.hash_at_after.empty()
            ? fmt::format("record {} of a checkpoint is not there any more", latest->last_sequence)
            : fmt::format("record {} is another one than at its checkpoint", latest->last_sequence);
    return out;
  }
  for (auto const& one : told.checkpoints) {
    if (latest && one.last_sequence < latest->last_sequence) {
      out.problem = fmt::format("it ends with record {}, at an earlier checkpoint with {}",
                                one.last_sequence,
                                latest->last_sequence);
      return out;
    }
    if (latest && one.last_sequence == latest->last_sequence && one.hash != latest->hash) {
      out.problem =
          fmt::format("record {} is another one than at its checkpoint", one.last_sequence);
      return out;
    }
    if (latest && one.first_sequence < latest->first_sequence) {
      out.problem = fmt::format("it begins with record {}, which retention had taken before",
                                one.first_sequence);
      return out;
    }
    bool const same = latest && one.last_sequence == latest->last_sequence &&
                      one.first_sequence == latest->first_sequence;
    if (same) continue;
    latest = one;
    out.good.push_back(one);
  }
  return out;
}

namespace {

/// The first problem among the checkpoints, in their order.
void compare(Verdict const& verdict,
             std::vector<wire::AuditCheckpoint> const& kept,
             std::map<std::uint64_t, std::string> const& found,
             Comparison& out) {
  for (auto const& one : kept) {
    auto const line = found.find(one.last_sequence);
    if (line != found.end() && line->second == one.hash) {
      out.confirmed_through = one.last_sequence;
      continue;
    }
    if (line != found.end())
      out.problem =
          fmt::format("record {} is another one than at its checkpoint", one.last_sequence);
    else if (verdict.last_sequence < one.last_sequence)
      out.problem = fmt::format("it ends with record {}; at a checkpoint it went to {}",
                                verdict.last_sequence,
                                one.last_sequence);
    else if (one.last_sequence > out.retired_through)
      out.problem = fmt::format(
          "record {} of a checkpoint is missing, and the control plane was not told of its "
          "retention",
          one.last_sequence);
    if (!out.problem.empty()) return;
  }
  if (verdict.first_sequence > out.retired_through + 1 && !kept.empty())
    out.problem = fmt::format(
        "it begins with record {}; at the latest checkpoint it began with {}. Retention within the "
        "last seconds is told at the next checkpoint: ask again",
        verdict.first_sequence,
        out.retired_through + 1);
}

}  // namespace

base::Result<Compared> verify_against(std::string const& directory,
                                      std::vector<wire::AuditCheckpoint> const& kept,
                                      std::string const& public_key) {
  Compared out;
  out.comparison.checkpoints = kept.size();
  std::map<std::uint64_t, std::string> found;
  for (auto const& one : kept) {
    found.emplace(one.last_sequence, "");
    out.comparison.retired_through =
        std::max(out.comparison.retired_through, one.first_sequence - 1);
    if (!is_signed(one, public_key))
      out.comparison.problem =
          fmt::format("the checkpoint at record {} is not signed by its node", one.last_sequence);
  }
  auto verdict = verify(directory, [&](std::string_view line) {
    auto const one = found.find(sequence_of(line));
    if (one != found.end()) one->second = hash_of(line);
  });
  if (!verdict) return base::passing(verdict);
  if (verdict->retired_through > 0 && verdict->problem.empty() && !kept.empty() &&
      !is_signed(kept.front().node, read_retired(directory).value_or(Retired{}), public_key))
    out.comparison.problem = "what it says of its retention is not signed by its node";
  std::erase_if(found, [](auto const& one) { return one.second.empty(); });
  out.verdict = std::move(*verdict);
  if (!out.verdict.problem.empty() || !out.comparison.problem.empty()) return out;
  compare(out.verdict, kept, found, out.comparison);
  if (out.verdict.last_sequence > out.comparison.confirmed_through)
    out.comparison.unconfirmed = out.verdict.last_sequence - out.comparison.confirmed_through;
  return out;
}

}  // namespace audit
