// The audit log of this host's worker: walked, and carried elsewhere.
#include "audit/checkpoint.hpp"
#include "audit/retention.hpp"
#include "cli/installation.hpp"
#include "cli/layout.hpp"
#include "cli/output.hpp"
#include "cli/policy_verbs.hpp"
#include "os/fd.hpp"
#include "wire/codec.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <charconv>

#include <fcntl.h>
#include <unistd.h>

namespace cli {
namespace {

std::string directory_of(AuditOptions const& options) {
  return options.directory.empty() ? data_dir_or_default("") + "/worker/audit" : options.directory;
}

base::Result<void> write_all(int file, std::string_view text) {
  while (!text.empty()) {
    auto const wrote = ::write(file, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return base::fail_errno("write the export");
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return {};
}

/// Syslog's own socket rather than syslog(3), which says nothing when nobody listens: lines that
/// are counted as exported must have been taken.
base::Result<os::Fd> open_syslog(std::string const& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof name.sun_path)
    return base::fail(base::Code::invalid_argument, "the path is too long", path);
  path.copy(name.sun_path, path.size());
  os::Fd out(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // SAFETY: connect takes any address type through sockaddr*.
  auto const* const address = reinterpret_cast<sockaddr const*>(&name);
  if (!out || ::connect(out.get(), address, sizeof name) != 0)
    return base::fail_errno("no syslog takes messages here", path);
  return out;
}

base::Result<void> send_to_syslog(int socket, std::string_view line) {
  constexpr int authpriv_info = 10 << 3 | 6;
  auto const text = fmt::format("<{}>space-audit: {}", authpriv_info, line);
  while (::send(socket, text.data(), text.size(), MSG_NOSIGNAL) < 0)
    if (errno != EINTR) return base::fail_errno("give a line to syslog");
  return {};
}

/// "seq" of a verified line; every line begins with it.
std::uint64_t sequence_of(std::string_view line) {
  std::uint64_t sequence = 0;
  for (auto const c : line.substr(std::string_view("{\"seq\":").size())) {
    if (c < '0' || c > '9') break;
    sequence = sequence * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return sequence;
}

/// 0 where there is none yet.
base::Result<std::uint64_t> read_state(std::string const& path) {
  auto text = read_file(path, 64);
  if (!text && text.error().code() == base::Code::not_found) return 0;
  if (!text) return base::passing(text);
  std::uint64_t after = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), after);
  if (error != std::errc() || std::string_view(end) != "\n")
    return base::fail(base::Code::invalid_argument, path + " is no state of an export");
  return after;
}

/// Whole or not at all: a torn number would export lines again, or leave some out.
base::Result<void> write_whole(std::string const& path, std::string_view text) {
  auto const next = path + ".new";
  os::Fd file(::open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno("write", next);
  if (auto written = write_all(file.get(), text); !written) return written;
  if (auto synced = file.sync_and_close(); !synced) return synced;
  if (::rename(next.c_str(), path.c_str()) != 0) return base::fail_errno("write", path);
  return {};
}

base::Result<void> write_state(std::string const& path, std::uint64_t after) {
  auto written = write_whole(path, fmt::format("{}\n", after));
  if (!written) return base::passing(written, "keep the export's state");
  return {};
}

/// "NUMBER HASH"; number 0 where there is none yet.
base::Result<audit::Checkpoint> read_checkpoint(std::string const& path) {
  constexpr std::size_t hash_digits = 64;
  audit::Checkpoint out;
  if (path.empty()) return out;
  auto text = read_file(path, 128);
  if (!text && text.error().code() == base::Code::not_found) return out;
  if (!text) return base::passing(text);
  auto const* const end = text->data() + text->size();
  auto const [stop, error] = std::from_chars(text->data(), end, out.sequence);
  std::string_view const rest(stop, end);
  bool const good = error == std::errc() && rest.size() == hash_digits + 2 && rest.front() == ' ' &&
                    rest.back() == '\n';
  if (!good) return base::fail(base::Code::invalid_argument, path + " is no checkpoint");
  out.hash = rest.substr(1, hash_digits);
  return out;
}

}  // namespace

namespace {

/// What the control plane keeps, or why it could not be asked.
struct Kept {
  bool asked = false;
  std::string why_not;
  std::string public_key;
  std::string problem;  // that the control plane itself found
  std::vector<wire::AuditCheckpoint> checkpoints;
};

/// Both answers together; the first problem ends it.
struct Answer {
  audit::Verdict verdict;
  audit::Comparison compared;
};

base::Result<Answer> walk(std::string const& directory,
                          audit::Checkpoint const& since,
                          Kept const& kept) {
  auto verdict =
      since.sequence > 0 ? audit::verify_since(directory, since) : audit::verify(directory);
  if (!verdict) return base::passing(verdict);
  Answer out{std::move(*verdict), {}};
  if (kept.checkpoints.empty() || !out.verdict.problem.empty()) return out;
  auto compared = audit::verify_against(directory, kept.checkpoints, kept.public_key);
  if (!compared) return base::passing(compared);
  out.compared = std::move(compared->comparison);
  // Lines that came meanwhile are whole, too.
  out.verdict = std::move(compared->verdict);
  if (out.verdict.problem.empty()) out.verdict.problem = out.compared.problem;
  return out;
}

json::object document_of(Answer const& answer, Kept const& kept, std::string const& problem) {
  auto const& verdict = answer.verdict;
  json::object out{{"whole", problem.empty()},
                   {"files", verdict.files},
                   {"lines", verdict.lines},
                   {"first_sequence", verdict.first_sequence},
                   {"retired_through", verdict.retired_through},
                   {"last_sequence", verdict.last_sequence},
                   {"last_hash", verdict.last_hash},
                   {"problem", problem}};
  json::object control_plane{{"asked", kept.asked}};
  if (!kept.asked) {
    control_plane["why_not"] = kept.why_not;
  } else {
    control_plane["checkpoints"] = kept.checkpoints.size();
    control_plane["confirmed_through"] = answer.compared.confirmed_through;
    control_plane["retired_through"] = answer.compared.retired_through;
    control_plane["unconfirmed"] = answer.compared.unconfirmed;
    control_plane["problem"] = kept.problem;
  }
  out["control_plane"] = std::move(control_plane);
  return out;
}

void say_kept(Output const& out, Answer const& answer, Kept const& kept) {
  if (!kept.asked) {
    out.line("not compared with the control plane: " + kept.why_not);
  } else if (kept.checkpoints.empty()) {
    out.line("the control plane has no checkpoint of it yet");
  } else {
    auto const& compared = answer.compared;
    out.line(fmt::format("the control plane's {} checkpoints confirm it up to number {}",
                         compared.checkpoints,
                         compared.confirmed_through));
    if (compared.retired_through > 0)
      out.line(fmt::format("and that retention took what came up to number {}",
                           compared.retired_through));
    if (compared.unconfirmed > 0)
      out.line(fmt::format("{} lines came after the last of them", compared.unconfirmed));
  }
}

int verify_with(Output const& out, AuditOptions const& options, Kept const& kept) {
  auto const checkpoint = read_checkpoint(options.checkpoint_file);
  if (!checkpoint) return out.fail(checkpoint.error());
  auto const answer = walk(directory_of(options), *checkpoint, kept);
  if (!answer)
    return out.fail(answer.error(),
                    "The log is there once a sandbox has had a network: space up --uplink");
  auto const& verdict = answer->verdict;
  auto problem = verdict.problem;
  if (problem.empty() && !kept.problem.empty())
    problem = fmt::format("the control plane says of it: {}", kept.problem);
  bool const whole = problem.empty();
  // What was changed is no checkpoint: the old one goes on telling.
  if (whole && !options.checkpoint_file.empty()) {
    auto const written = write_whole(
        options.checkpoint_file, fmt::format("{} {}\n", verdict.last_sequence, verdict.last_hash));
    if (!written) return out.fail(written.error());
  }
  if (out.as_json()) {
    out.document(document_of(*answer, kept, problem));
    return whole ? 0 : 1;
  }
  out.line(fmt::format("{} lines in {} files, from number {} on",
                       verdict.lines,
                       verdict.files,
                       verdict.first_sequence));
  if (verdict.retired_through > 0)
    out.line(
        fmt::format("retention took what came before, up to number {}", verdict.retired_through));
  if (verdict.lines > 0) out.line(fmt::format("last hash {}", verdict.last_hash));
  if (whole) out.line("whole: every line carries the hash of the one before");
  if (whole && checkpoint->sequence > 0)
    out.line(fmt::format("as it was at the checkpoint, up to number {}", checkpoint->sequence));
  say_kept(out, *answer, kept);
  if (whole) return 0;
  return out.fail({base::Code::conflict, "the log was changed: " + problem});
}

async::Task<Kept> ask_kept(Session session, std::string node) {
  Kept out;
  std::uint64_t after = 0;
  for (;;) {
    auto target = fmt::format("{}?after={}", path_of("nodes", node, "/audit/checkpoints"), after);
    auto page = co_await session.api.call("GET", std::move(target), nullptr, in_a_minute());
    if (!page) co_return base::passing(page);
    out.public_key = text_of(*page, "public_key");
    out.problem = text_of(*page, "problem");
    auto const& list = member_of(*page, "checkpoints");
    if (!list.is_array()) break;
    for (auto const& one : list.as_array()) {
      auto document = one;
      if (!document.is_object()) continue;
      document.as_object()["node"] = node;
      auto read = wire::decode<wire::AuditCheckpoint>(document, wire::UnknownKeys::ignore);
      if (!read) co_return base::passing(read);
      out.checkpoints.push_back(std::move(*read));
    }
    auto const& more = member_of(*page, "more");
    bool const goes_on = more.is_bool() && more.as_bool() && !out.checkpoints.empty() &&
                         out.checkpoints.back().last_sequence > after;
    if (!goes_on) break;
    after = out.checkpoints.back().last_sequence;
  }
  out.asked = true;
  co_return out;
}

}  // namespace

int audit_verify(AuditOptions const& options, bool as_json) {
  Kept kept;
  kept.why_not = options.node.empty() ? "nobody said whose log it is (--node)"
                                      : "its address or its key is not known here";
  return verify_with(Output::standard(as_json), options, kept);
}

asio::awaitable<int> audit_verify_kept(Session session, AuditOptions options) {
  auto asked = co_await ask_kept(session, options.node);
  Kept kept;
  if (asked)
    kept = std::move(*asked);
  else
    kept.why_not = asked.error().message();
  co_return verify_with(session.out, options, kept);
}

asio::awaitable<int> audit_accept(Session session, std::string node) {
  auto done = co_await session.api.call(
      "DELETE", path_of("nodes", node, "/audit/checkpoints"), nullptr, in_a_minute());
  if (!done) co_return session.out.fail(done.error());
  session.out.note(fmt::format("what {} shows next is taken", node));
  co_return 0;
}

/// Only lines that were verified leave; the first broken one ends it.
int audit_export(AuditOptions const& asked) {
  auto const out = Output::standard(false);
  auto options = asked;
  if (!options.state_file.empty()) {
    auto after = read_state(options.state_file);
    if (!after) return out.fail(after.error());
    options.after = *after;
  }
  bool const to_stdout = options.file.empty() || options.file == "-";
  if (options.to_syslog && !options.file.empty())
    return out.fail({base::Code::invalid_argument, "give either --file or --syslog"});
  os::Fd file;
  if (!to_stdout) {
    file = os::Fd(
        ::open(options.file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file)
      return out.fail({base::Code::invalid_argument, "the file cannot be opened: " + options.file});
  }
  if (options.to_syslog) {
    auto opened = open_syslog(options.syslog_socket);
    if (!opened) return out.fail(opened.error());
    file = std::move(*opened);
  }
  auto const wanted =
      options.sandbox.empty() ? std::string() : fmt::format("\"sandbox\":\"{}\"", options.sandbox);
  base::Result<void> written;
  std::uint64_t lines = 0;
  std::uint64_t last = options.after;
  auto verdict = audit::verify(directory_of(options), [&](std::string_view line) {
    auto const sequence = sequence_of(line);
    if (!written) return;
    bool const skip = sequence <= options.after ||
                      (!wanted.empty() && line.find(wanted) == std::string_view::npos);
    if (!skip)
      written = options.to_syslog
                    ? send_to_syslog(file.get(), line)
                    : write_all(to_stdout ? STDOUT_FILENO : file.get(), std::string(line) + "\n");
    if (!written) return;
    last = std::max(last, sequence);
    lines += skip ? 0 : 1;
  });
  if (!verdict) return out.fail(verdict.error());
  // What syslog has it has; a file may end within a line, and its state stays where it was.
  if (!written && !options.to_syslog) return out.fail(written.error());
  if (file && !options.to_syslog && ::fsync(file.get()) != 0)
    return out.fail({base::Code::internal, "sync the export"});
  if (!options.state_file.empty()) {
    if (auto kept = write_state(options.state_file, last); !kept) return out.fail(kept.error());
  }
  if (!written) return out.fail(written.error());
  out.note(fmt::format("{} lines exported. Go on later: --after {}", lines, last));
  if (options.after > 0 && verdict->first_sequence > options.after + 1)
    return out.fail(
        {base::Code::conflict,
         fmt::format("lines {} to {} went before they were exported: export more often, "
                     "or keep more (space audit retain)",
                     options.after + 1,
                     verdict->first_sequence - 1)});
  if (!verdict->problem.empty())
    return out.fail({base::Code::conflict, "the log was changed: " + verdict->problem});
  return 0;
}

int audit_retain(AuditOptions const& options, bool as_json) {
  auto const out = Output::standard(as_json);
  auto const directory = directory_of(options);
  bool const to_change = options.keep_mib || options.keep_days;
  auto retention = audit::read_retention(directory);
  if (!retention && !to_change) return out.fail(retention.error());
  auto wanted = retention.value_or(audit::Retention{});
  if (options.keep_mib) wanted.keep_mib = *options.keep_mib;
  if (options.keep_days) wanted.keep_days = *options.keep_days;
  if (to_change) {
    if (auto written = audit::write_retention(directory, wanted); !written)
      return out.fail(written.error(),
                      written.error().code() == base::Code::invalid_argument
                          ? std::string_view()
                          : "As root, where a sandbox has had a network: space up --uplink");
  }
  if (as_json) {
    out.document(json::object{{"keep_mib", wanted.keep_mib}, {"keep_days", wanted.keep_days}});
    return 0;
  }
  out.line(fmt::format("at most {} MiB are kept{}",
                       wanted.keep_mib,
                       wanted.keep_days == 0
                           ? std::string(", no matter how old")
                           : fmt::format(", and nothing older than {} days", wanted.keep_days)));
  return 0;
}

}  // namespace cli
