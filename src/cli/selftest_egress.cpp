#include "cli/selftest_egress.hpp"

#include "cli/doctor.hpp"
#include "cli/installation.hpp"
#include "cli/process.hpp"
#include "cli/selftest_answers.hpp"
#include "cli/selftest_catalogue.hpp"
#include "cli/selftest_rig.hpp"
#include "os/text_file.hpp"
#include "wire/codec.hpp"

#include <sys/random.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <unistd.h>

namespace cli {
namespace {

namespace fs = std::filesystem;
using selftest::Case;
using selftest::CaseVerdict;

std::string new_token() {
  std::array<unsigned char, 5> bytes{};
  static_cast<void>(::getrandom(bytes.data(), bytes.size(), 0));
  std::string out = "tk";
  for (auto const byte : bytes)
    out += fmt::format("{:02x}", byte);
  return out;
}

std::sig_atomic_t volatile interrupted = 0;

/// What was started has to be taken away again, so an interrupt only ends the step under way (whose
/// program gets it too) and the ones after it.
void remember_interrupts() {
  auto const remember = [](int) { interrupted = 1; };
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

base::Result<void> go_on() {
  if (interrupted != 0) return base::fail(base::Code::cancelled, "interrupted");
  return {};
}

/// The installation under attack: the same programs, directories and ports of its own.
class Target {
 public:
  Target(wire::Config const& like, std::string directory)
      : like_(like),
        directory_(std::move(directory)),
        instance_(fmt::format("st{}", ::getpid() % 100'000)) {}

  Target(Target const&) = delete;
  Target& operator=(Target const&) = delete;

  ~Target() {
    if (!sandbox_.empty() || started_) static_cast<void>(space({"down", "--purge"}));
    std::error_code ignored;
    fs::remove_all(data_dir(), ignored);
    fs::remove_all(run_dir(), ignored);
  }

  base::Result<void> start(selftest::EgressRig const& rig) {
    started_ = true;
    auto const port = static_cast<unsigned>(20'000 + ::getpid() % 20'000);
    // Away from the user ids of ordinary installations and of the test suites.
    auto const users = 3'000'000U + static_cast<unsigned>(::getpid() % 1000) * 1000;
    auto up = space({"up",
                     "--instance",
                     instance_,
                     "--data-dir",
                     data_dir(),
                     "--run-dir",
                     run_dir(),
                     "--http-port",
                     std::to_string(port),
                     "--tls-port",
                     std::to_string(port + 1),
                     "--slot-uid-base",
                     std::to_string(users),
                     "--accelerator",
                     like_.accelerator.empty() ? "auto" : like_.accelerator,
                     "--warm-target",
                     "0",
                     "--uplink",
                     rig.uplink(),
                     "--resolver",
                     selftest::EgressRig::resolver,
                     "--private-route",
                     selftest::EgressRig::network,
                     "--upstream-ca-file",
                     rig.authority()});
    if (!up) return base::passing(up, "start an installation of its own");
    // The witness puts a table of its own into the slot, which would end the sandbox's network.
    if (!std::ofstream(run_dir() + "/hostd/rules-unwatched"))
      return base::fail(base::Code::internal, "the watch over packet rules cannot be stopped");
    return {};
  }

  /// A credential of this installation alone, to be stolen. It goes with the installation. `wide`:
  /// bound to bound.example as well, as it has to be when a policy that names it there is put in
  /// force. What is attacked is the narrower one under the same policy.
  base::Result<void> plant_credential(bool wide) const {
    auto file = keep("credential", std::string(selftest::planted_credential));
    if (!file) return base::passing(file);
    std::vector<std::string> words = {"credential", "put", credential, "--file", *file};
    for (auto const& [option, values] :
         std::vector<std::pair<char const*, std::vector<char const*>>>{
             {"--host", {"api.example", "api.github.com"}},
             {"--port", {"443", "80"}},
             {"--method", {"GET", "POST"}},
             {"--path", {"/v1/**", "/user/**", "/repos/**"}},
             {"--header", {"x-api-key"}}})
      for (auto const* value : values)
        words.insert(words.end(), {option, value});
    if (wide) words.insert(words.end(), {"--host", "bound.example"});
    auto done = space(std::move(words));
    if (!done) return base::passing(done, "plant a credential");
    return {};
  }

  /// Out of quarantine, where it is since a server sent it back: with the same value, anew.
  base::Result<void> renew_credential() const {
    auto done = space({"credential", "rotate", credential, "--file", directory_ + "/credential"});
    if (!done) return base::passing(done, "renew the planted credential");
    return {};
  }

  base::Result<bool> is_quarantined() const {
    auto listed = space({"--json", "credential", "list"});
    if (!listed) return base::passing(listed);
    boost::system::error_code error;
    auto const answer = json::parse(*listed, error);
    auto const* all = error ? nullptr : member_of(answer, "credentials").if_array();
    if (!all) return base::fail(base::Code::internal, "credential list said no JSON");
    return std::ranges::any_of(*all, [](json::value const& one) {
      return text_of(one, "name") == credential && text_of(one, "state") == "quarantined";
    });
  }

  base::Result<void> forget_credential() const {
    auto done = space({"credential", "rm", credential});
    if (!done) return base::passing(done, "remove the planted credential");
    return {};
  }

  base::Result<void> boot(json::object const& policy) {
    auto file = keep("policy.json", json::serialize(policy));
    if (!file) return base::passing(file);
    auto made = space({"--json", "sandbox", "create", "--policy", *file, "--timeout", "1h"});
    if (!made) return base::passing(made, "boot a sandbox");
    boost::system::error_code error;
    auto const answer = json::parse(*made, error);
    if (error) return base::fail(base::Code::internal, "sandbox create said no JSON");
    auto const& inner = member_of(answer, "sandbox");
    sandbox_ = text_of(inner.is_null() ? answer : inner, "id");
    if (sandbox_.empty())
      return base::fail(base::Code::internal, "sandbox create named no sandbox");
    auto program = keep("attack.py", std::string(selftest::attack_program()));
    if (!program) return base::passing(program);
    auto copied = space({"cp", *program, sandbox_ + ":/tmp/attack.py"});
    if (!copied) return base::passing(copied, "copy the attacks into the guest");
    return {};
  }

  base::Result<std::string> slot_netns() const {
    auto text = os::read_text(data_dir() + "/worker/sandboxes/" + sandbox_ + ".json");
    if (!text) return base::passing(text, "the worker's journal");
    boost::system::error_code error;
    auto const entry = json::parse(*text, error);
    if (error) return base::fail(base::Code::internal, "the worker's journal is no JSON");
    return fmt::format("{}/hostd/netns/{}", run_dir(), number_of(entry, "slot"));
  }

  base::Result<void> put(json::object const& policy) const {
    auto file = keep("policy.json", json::serialize(policy));
    if (!file) return base::passing(file);
    if (auto planted = plant_credential(true); !planted) return planted;
    auto done = space({"policy", "set", sandbox_, "--policy", *file});
    if (!done) return base::passing(done, "put a policy in force");
    return plant_credential(false);
  }

  /// Of the guest's decisions, as they are on disk now.
  std::vector<json::object> audited() const {
    std::vector<json::object> out;
    std::error_code failed;
    for (auto const& file : fs::directory_iterator(data_dir() + "/worker/audit", failed)) {
      if (file.path().extension() != ".jsonl") continue;
      std::ifstream lines(file.path());
      for (std::string line; std::getline(lines, line);) {
        boost::system::error_code error;
        auto const parsed = json::parse(line, error);
        if (error || !parsed.is_object()) continue;
        auto const& inner = member_of(parsed, "record");
        auto const& record = inner.is_object() ? inner : parsed;
        if (text_of(record, "sandbox") == sandbox_) out.push_back(record.get_object());
      }
    }
    return out;
  }

  /// Runs the cases in the guest; what the program there printed.
  base::Result<std::string> attack(std::string const& cases) const {
    auto list = keep("cases.json", cases);
    if (!list) return base::passing(list);
    auto copied = space({"cp", *list, sandbox_ + ":/tmp/cases.json"});
    if (!copied) return base::passing(copied, "copy the cases into the guest");
    return space({"exec",
                  sandbox_,
                  "--user",
                  "root",
                  "--timeout",
                  "10m",
                  "--",
                  "python3",
                  "-B",
                  "/tmp/attack.py",
                  "/tmp/cases.json"});
  }

 private:
  std::string data_dir() const { return "/var/lib/space-" + instance_; }

  std::string run_dir() const { return "/run/space-" + instance_; }

  base::Result<std::string> keep(std::string const& name, std::string const& text) const {
    auto path = directory_ + "/" + name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << text;
    file.close();
    if (!file) return base::fail(base::Code::unavailable, "write " + path);
    return path;
  }

  base::Result<std::string> space(std::vector<std::string> words) const {
    std::error_code failed;
    words.insert(words.begin(), fs::read_symlink("/proc/self/exe", failed).string());
    Program program{.arguments = std::move(words), .environment = plain_environment()};
    program.environment.push_back("SPACE_DATA_DIR=" + data_dir());
    program.environment.push_back("SPACE_RUN_DIR=" + run_dir());
    if (auto const* images =
            std::getenv("SPACE_IMAGES_DIR"))  // NOLINT(concurrency-mt-unsafe): one thread
      program.environment.push_back(std::string("SPACE_IMAGES_DIR=") + images);
    auto done = run_program(program);
    if (!done) return base::passing(done);
    if (done->exit_code != 0)
      return base::fail(
          base::Code::unavailable,
          fmt::format(
              "space {} ended with {}: {}",
              program.arguments[1],
              done->exit_code,
              done->err.substr(done->err.size() - std::min<std::size_t>(done->err.size(), 600))));
    return std::move(done->out);
  }

  static constexpr char credential[] = "key";  // as the catalogue's policies call it

  wire::Config const& like_;
  std::string directory_, instance_, sandbox_;
  bool started_ = false;
};

/// The server sends the credential back, so it is quarantined behind each attack: one at a time,
/// with a new version of it each.
base::Result<void> attack_reflecting(Target const& target, Case& one) {
  for (auto const& part : selftest::in_parts(one)) {
    if (auto next = go_on(); !next) return next;
    if (auto renewed = target.renew_credential(); !renewed) return renewed;
    auto printed = target.attack(selftest::text_for_guest({&part}));
    if (!printed) return base::passing(printed);
    selftest::take_results(*printed, {&one});
    bool quarantined = false;
    for (int i = 0; i < 20 && !quarantined; ++i) {
      ::usleep(500'000);
      auto seen = target.is_quarantined();
      if (!seen) return base::passing(seen);
      quarantined = *seen;
    }
    if (!quarantined) one.unseen = "a credential that a server sent back was not quarantined";
  }
  return {};
}

base::Result<void> attack_under(Output const& output,
                                Target const& target,
                                std::string const& name,
                                json::object const& policy,
                                std::vector<Case>& cases) {
  std::vector<Case const*> given;
  std::vector<Case*> taken;
  std::vector<Case*> reflecting;
  for (auto& one : cases) {
    if (one.policy != name || !one.not_here.empty()) continue;
    if (selftest::reflects(one)) {
      reflecting.push_back(&one);
      continue;
    }
    given.push_back(&one);
    taken.push_back(&one);
  }
  if (given.empty() && reflecting.empty()) return {};
  if (auto next = go_on(); !next) return next;
  output.note(fmt::format("{} cases under the policy {}", given.size() + reflecting.size(), name));
  if (auto put = target.put(policy); !put) return put;
  auto printed = target.attack(selftest::text_for_guest(given));
  if (!printed) return base::passing(printed);
  selftest::take_results(*printed, taken);
  for (auto* one : reflecting)
    if (auto done = attack_reflecting(target, *one); !done) return done;
  return {};
}

/// Again for a while, until all that holds is written down on all sides.
std::vector<CaseVerdict> judge_all(std::vector<Case> const& cases,
                                   selftest::EgressRig const& rig,
                                   selftest::GuardWitness const& witness,
                                   Target const& target) {
  for (int i = 0;; ++i) {
    ::usleep(500'000);  // what is under way to a server
    selftest::Outside const outside{rig.arrived(),
                                    [&](std::string const& token) { return witness.passed(token); },
                                    witness.tracked(),
                                    target.audited()};
    std::vector<CaseVerdict> verdicts;
    for (auto const& one : cases)
      verdicts.push_back(selftest::judge(one, outside));
    bool const fine = std::ranges::none_of(
        verdicts, [](CaseVerdict const& one) { return one.verdict == "broken"; });
    if (fine || i == 4) return verdicts;
  }
}

base::Result<std::vector<CaseVerdict>> attack_all(Output const& output,
                                                  wire::Config const& config,
                                                  std::string const& directory) {
  auto catalogue = selftest::load_catalogue(selftest::catalogue_text(), new_token);
  if (!catalogue) return base::passing(catalogue);
  auto rig = selftest::EgressRig::start(directory);
  if (!rig) return base::passing(rig, "make an internet of its own");
  Target target(config, directory);
  output.note("starting an installation of its own, whose uplink leads nowhere");
  auto step = target.start(*rig);
  if (step) step = go_on();
  if (step) step = target.plant_credential(true);
  if (step) step = target.boot(catalogue->policies.front().second);
  if (!step) return base::passing(step);
  auto slot = target.slot_netns();
  if (!slot) return base::passing(slot);
  auto witness = selftest::GuardWitness::start(*slot, directory + "/frames");
  if (!witness) return base::passing(witness);
  for (auto const& [name, policy] : catalogue->policies)
    if (step) step = attack_under(output, target, name, policy, catalogue->cases);
  if (!step) return base::passing(step);
  auto verdicts = judge_all(catalogue->cases, *rig, *witness, target);
  if (auto forgotten = target.forget_credential(); !forgotten) return base::passing(forgotten);
  return verdicts;
}

CaseVerdict verdict_on_uplink(wire::Config const& config) {
  auto const finding = probe_uplink(config);
  return {"uplink",
          "the real uplink's rules, looked at",
          finding.health == Health::broken ? "broken" : "held",
          finding.proof};
}

int report(Output const& output, std::vector<CaseVerdict> const& verdicts) {
  std::size_t broken = 0;
  std::size_t skipped = 0;
  std::vector<std::vector<std::string>> rows;
  for (auto const& one : verdicts) {
    broken += one.verdict == "broken" ? 1 : 0;
    skipped += one.verdict == "not tried" ? 1 : 0;
    rows.push_back({one.id, one.verdict, one.what, one.why});
  }
  if (output.as_json()) {
    output.document(wire::encode(verdicts));
  } else {
    output.table({"CASE", "VERDICT", "ATTACK", "WHY"}, rows);
    output.note(fmt::format("{} cases: {} held, {} broken, {} not tried here",
                            verdicts.size(),
                            verdicts.size() - broken - skipped,
                            broken,
                            skipped));
  }
  return broken > 0 ? 1 : 0;
}

}  // namespace

int selftest_egress(Output const& output) {
  if (::geteuid() != 0)
    return output.fail(
        {base::Code::denied, "the suite makes namespaces and starts an installation: root only"},
        "Try: sudo space selftest egress");
  auto const config = config_of_host();
  std::string directory = "/run/space-selftest-egress-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr)
    return output.fail({base::Code::unavailable, "make a directory in /run"});
  std::error_code ignored;
  fs::permissions(directory, fs::perms(0755), ignored);  // the worker reads the authority in it
  remember_interrupts();
  auto verdicts = attack_all(output, config, directory);
  fs::remove_all(directory, ignored);
  if (!verdicts) return output.fail(verdicts.error());
  verdicts->push_back(verdict_on_uplink(config));
  return report(output, *verdicts);
}

}  // namespace cli
