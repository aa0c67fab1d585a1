#include "cli/host_facts.hpp"
#include "cli/installation.hpp"
#include "cli/layout.hpp"
#include "cli/verbs.hpp"
#include "wire/codec.hpp"

#include <algorithm>

#include <boost/asio/this_coro.hpp>

namespace cli {
namespace {

using namespace std::chrono_literals;

/// One create, start to first output.
struct Sample {
  bool succeeded = false;
  std::string error{};
  std::string started_by{};
  /// In the order of the path: name and milliseconds since the request left.
  std::vector<std::pair<std::string, double>> parts{};
  double agent_memory_mib = 0;
  std::vector<double> machine_memory_mib{};
};

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  auto const index = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  return values[std::min(index, values.size() - 1)];
}

json::object summary_of(std::vector<double> const& values) {
  return {{"n", values.size()},
          {"p50", percentile(values, 0.5)},
          {"p90", percentile(values, 0.9)},
          {"p99", percentile(values, 0.99)},
          {"min", percentile(values, 0)},
          {"max", percentile(values, 1)}};
}

/// What the steps of its start tell: which way it went. "… after a failure" when the way that was
/// meant did not work.
std::string way_of(json::value const& timeline) {
  std::string way = "cold boot";
  bool anew = false;
  if (auto const* steps = timeline.if_array()) {
    for (auto const& step : *steps) {
      auto const name = text_of(step, "step");
      if (name.ends_with("began_anew")) {
        anew = true;
        way = "cold boot";
      }
      if (name.ends_with("claimed")) way = "warm machine";
      if (name.ends_with("restored")) way = "base snapshot";
    }
  }
  return anew ? way + " after a failure" : way;
}

class Bench {
 public:
  Bench(Session session, BenchOptions options, wire::Config config)
      : session_(session), options_(std::move(options)), config_(std::move(config)) {}

  asio::awaitable<void> run();
  json::object result() const;
  void show(json::object const& result) const;

  bool all_succeeded() const { return std::ranges::all_of(samples_, &Sample::succeeded); }

 private:
  asio::awaitable<void> lane();
  asio::awaitable<Sample> sample();
  async::Task<void> measure(Sample* sample, std::string* sandbox);
  async::Task<json::value> run_in(std::string sandbox, std::vector<std::string> words);

  Session session_;
  BenchOptions options_;
  wire::Config config_;
  json::value node_{};
  std::uint32_t begun_ = 0;
  std::vector<Sample> samples_{};
  double wall_ms_ = 0;
  json::object idle_memory_{};
};

double ms_since(base::SteadyTime then) {
  return std::chrono::duration<double, std::milli>(base::system_clock().steady_now() - then)
      .count();
}

async::Task<json::value> Bench::run_in(std::string sandbox, std::vector<std::string> words) {
  json::array argv;
  for (auto& word : words)
    argv.emplace_back(std::move(word));
  return session_.api.call("POST",
                           path_of("sandboxes", sandbox, "/commands?wait=60"),
                           json::object{{"argv", std::move(argv)}},
                           base::system_clock().in(90s));
}

async::Task<void> Bench::measure(Sample* sample, std::string* sandbox) {
  json::object body{{"timeout_s", 600}};
  if (!options_.template_name.empty()) body["template"] = options_.template_name;
  if (!options_.memory.empty()) {
    auto mib = parse_mib(options_.memory);
    if (!mib) co_return base::passing(mib);
    body["memory_mib"] = *mib;
  }
  auto const start = base::system_clock().steady_now();
  auto made = co_await session_.api.call(
      "POST", "/v1/sandboxes?wait=300", std::move(body), base::system_clock().in(330s));
  if (!made) co_return base::passing(made, "create");
  auto const running_ms = ms_since(start);
  *sandbox = text_of(member_of(*made, "sandbox"), "id");
  if (text_of(member_of(*made, "sandbox"), "state") != "running")
    co_return base::fail(base::Code::deadline_exceeded, "it did not run in time");
  auto first = co_await run_in(*sandbox, {"/bin/echo", "first"});
  if (!first) co_return base::passing(first, "first command");
  auto const output_ms = ms_since(start);
  if (text_of(*first, "stdout") != "first\n")
    co_return base::fail(base::Code::internal, "the first command's output is not what it wrote");
  auto again = base::system_clock().steady_now();
  auto second = co_await run_in(*sandbox, {"/bin/echo", "second"});
  if (!second) co_return base::passing(second, "second command");
  auto const again_ms = ms_since(again);
  auto shown = co_await session_.api.call(
      "GET", path_of("sandboxes", *sandbox, "?timeline=1"), nullptr, in_a_minute());
  if (!shown) co_return base::passing(shown, "timeline");
  if (auto const* steps = member_of(*shown, "timeline").if_array()) {
    for (auto const& step : *steps)
      sample->parts.emplace_back(text_of(step, "step"), decimal_of(step, "at_ms"));
  }
  sample->started_by = way_of(member_of(*shown, "timeline"));
  sample->parts.emplace_back("answer: running", running_ms);
  sample->parts.emplace_back("first output", output_ms);
  sample->parts.emplace_back("a second command by itself", again_ms);
  sample->machine_memory_mib = machine_memory_mib(config_);
  auto agent = co_await run_in(*sandbox, {"/bin/grep", "VmRSS", "/proc/1/status"});
  if (agent)
    sample->agent_memory_mib =
        std::strtod(text_of(*agent, "stdout")
                        .substr(std::min<std::size_t>(6, text_of(*agent, "stdout").size()))
                        .c_str(),
                    nullptr) /
        1024;
  co_return base::Result<void>();
}

asio::awaitable<Sample> Bench::sample() {
  Sample sample;
  std::string sandbox;
  auto done = co_await measure(&sample, &sandbox);
  sample.succeeded = done.has_value();
  if (!done) sample.error = done.error().message();
  if (!sandbox.empty())
    (void)co_await session_.api.call(
        "DELETE", path_of("sandboxes", sandbox, "?wait=60"), nullptr, base::system_clock().in(90s));
  co_return sample;
}

asio::awaitable<void> Bench::lane() {
  while (begun_ < options_.count) {
    auto const number = ++begun_;
    if (number > 1 && options_.settle_s > 0)
      co_await async::sleep_for(std::chrono::seconds(options_.settle_s));
    auto one = co_await sample();
    session_.out.note(one.succeeded
                          ? fmt::format("  {}/{}  {}: running {:.0f} ms, first output {:.0f} ms",
                                        number,
                                        options_.count,
                                        one.started_by,
                                        one.parts[one.parts.size() - 3].second,
                                        one.parts[one.parts.size() - 2].second)
                          : fmt::format("  {}/{}  failed: {}", number, options_.count, one.error));
    samples_.push_back(std::move(one));
  }
}

asio::awaitable<void> Bench::run() {
  auto nodes = co_await session_.api.call("GET", "/v1/nodes", nullptr, in_a_minute());
  if (nodes) {
    if (auto const* list = member_of(*nodes, "nodes").if_array(); list && !list->empty())
      node_ = list->front();
  }
  idle_memory_ = program_memory_mib(config_);
  auto const start = base::system_clock().steady_now();
  async::TaskGroup lanes(co_await asio::this_coro::executor);
  for (std::uint32_t i = 0; i < options_.concurrency; ++i)
    lanes.spawn("lane", lane());
  co_await lanes.join();
  wall_ms_ = ms_since(start);
}

json::object Bench::result() const {
  std::vector<std::string> order;
  std::map<std::string, std::vector<double>> parts;
  std::map<std::string, std::size_t> ways;
  std::vector<double> agents, machines;
  json::array errors;
  std::size_t succeeded = 0;
  for (auto const& one : samples_) {
    if (!one.succeeded) {
      errors.emplace_back(one.error);
      continue;
    }
    ++succeeded;
    ++ways[one.started_by];
    for (auto const& [name, ms] : one.parts) {
      if (!parts.contains(name)) order.push_back(name);
      parts[name].push_back(ms);
    }
    if (one.agent_memory_mib > 0) agents.push_back(one.agent_memory_mib);
    machines.insert(machines.end(), one.machine_memory_mib.begin(), one.machine_memory_mib.end());
  }
  json::array path;
  for (auto const& name : order) {
    auto row = summary_of(parts[name]);
    row["part"] = name;
    path.push_back(std::move(row));
  }
  json::object started_by;
  for (auto const& [way, n] : ways)
    started_by[way] = n;
  return {
      {"what", "create"},
      {"started_by", std::move(started_by)},
      {"settle_s", options_.settle_s},
      {"at", base::to_rfc3339(base::system_clock().wall_now())},
      {"host", host_facts()},
      {"driver", text_of(node_, "driver")},
      {"accelerator", text_of(node_, "accelerator")},
      {"template", options_.template_name.empty() ? "base" : options_.template_name},
      {"memory_mib",
       options_.memory.empty() ? json::value("the template's") : json::value(options_.memory)},
      {"concurrency", options_.concurrency},
      {"count", samples_.size()},
      {"success_rate",
       samples_.empty() ? 0.0
                        : static_cast<double>(succeeded) / static_cast<double>(samples_.size())},
      {"wall_ms", wall_ms_},
      {"path_ms", std::move(path)},
      {"program_memory_mib_before", idle_memory_},
      {"program_memory_mib_after", program_memory_mib(config_)},
      {"machine_memory_mib", summary_of(machines)},
      {"agent_memory_mib", summary_of(agents)},
      {"errors", std::move(errors)}};
}

void Bench::show(json::object const& result) const {
  json::value const whole = result;
  auto const& host = member_of(whole, "host");
  session_.out.line(
      fmt::format("{} creates, {} at a time, {:.0f} % succeeded; {} cores, {}, {} with {}",
                  number_of(whole, "count"),
                  number_of(whole, "concurrency"),
                  decimal_of(whole, "success_rate") * 100,
                  number_of(host, "cores"),
                  text_of(host, "processor"),
                  text_of(whole, "driver"),
                  text_of(whole, "accelerator")));
  auto const cell = [](json::value const& row, std::string_view key) {
    return fmt::format("{:.1f}", decimal_of(row, key));
  };
  for (auto const& [way, n] : member_of(whole, "started_by").as_object())
    session_.out.line(fmt::format("{} by {}", n.to_number<std::uint64_t>(), std::string(way)));
  std::vector<std::vector<std::string>> rows;
  for (auto const& row : member_of(whole, "path_ms").as_array()) {
    rows.push_back({text_of(row, "part"),
                    cell(row, "p50"),
                    cell(row, "p90"),
                    cell(row, "p99"),
                    cell(row, "max")});
  }
  session_.out.table({"MS SINCE THE REQUEST", "P50", "P90", "P99", "MAX"}, rows);
  rows.clear();
  auto const& before = member_of(whole, "program_memory_mib_before");
  auto const& after = member_of(whole, "program_memory_mib_after");
  for (auto const& [name, value] : after.as_object())
    rows.push_back({std::string(name), cell(before, name), cell(after, name)});
  auto const& machine = member_of(whole, "machine_memory_mib");
  auto const& agent = member_of(whole, "agent_memory_mib");
  if (number_of(machine, "n") > 0)
    rows.push_back({"one machine (median)", "", cell(machine, "p50")});
  if (number_of(agent, "n") > 0)
    rows.push_back({"agent in the guest (median)", "", cell(agent, "p50")});
  session_.out.table({"MEMORY, MIB", "BEFORE", "AFTER"}, rows);
}

}  // namespace

asio::awaitable<int> bench_create(Session session, BenchOptions options) {
  auto config = wire::load_config(run_dir_or_default("") + "/config.json");
  if (!config) session.out.note("The platform is on another host: no memory is measured.");
  auto const json_file = options.json_file;
  Bench bench(session, std::move(options), config ? *config : wire::Config());
  co_await bench.run();
  auto const result = bench.result();
  if (!json_file.empty()) {
    auto wrote = write_file(json_file, wire::to_text(result) + "\n", 0644);
    if (!wrote) co_return session.out.fail(wrote.error());
  }
  if (session.out.as_json())
    session.out.document(result);
  else
    bench.show(result);
  co_return bench.all_succeeded() ? 0 : 1;
}

}  // namespace cli
