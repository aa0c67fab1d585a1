#include "cli/doctor.hpp"

#include "cli/doctor_audit.hpp"
#include "cli/installation.hpp"
#include "wire/codec.hpp"

#include <unistd.h>

namespace cli {
namespace {

std::string_view mark_of(Health health) {
  switch (health) {
    case Health::ok:
      return "ok      ";
    case Health::degraded:
      return "degraded";
    case Health::broken:
      return "broken  ";
  }
  return "?";
}

/// The text in lines of at most `width`, each with `indent` in front.
std::string wrapped(std::string_view text, std::size_t width, std::string_view indent) {
  std::string out;
  std::size_t column = 0;
  while (!text.empty()) {
    auto const space = text.find(' ');
    auto const word = text.substr(0, space);
    if (column > 0 && column + 1 + word.size() > width) {
      out += '\n';
      column = 0;
    }
    if (column == 0)
      out += indent;
    else
      out += ' ';
    column += word.size() + (column > 0 ? 1 : 0);
    out += word;
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  }
  return out + "\n";
}

}  // namespace

Health worst(std::vector<Finding> const& findings) noexcept {
  auto found = Health::ok;
  for (auto const& one : findings)
    found = std::max(found, one.health);
  return found;
}

std::string render(std::vector<Finding> const& findings) {
  constexpr std::size_t width = 88;
  constexpr std::string_view indent = "                              ";
  std::string out;
  for (auto const& one : findings) {
    auto proof = wrapped(one.proof, width, indent);
    // The first line stands beside the name.
    auto const head = fmt::format("{}  {:<18}  ", mark_of(one.health), one.what);
    out += head + proof.substr(std::min(proof.size(), indent.size()));
    if (!one.follows.empty()) out += wrapped("so: " + one.follows, width, indent);
    if (!one.fix.empty()) out += fmt::format("{}try: {}\n", indent, one.fix);
  }
  return out;
}

int doctor(Output const& output) {
  auto const config = config_of_host();
  if (geteuid() != 0)
    output.note(
        "Some probes need root (namespaces, control groups): for the whole page run sudo space "
        "doctor");
  DoctorReport report;
  report.findings = {probe_programs(config),
                     probe_accelerator(config),
                     probe_emulator(),
                     probe_reflink(config),
                     probe_control_groups(),
                     probe_nft(),
                     probe_tap(),
                     probe_uplink(config),
                     probe_resolver(config),
                     probe_database(config),
                     probe_disk_space(config),
                     probe_pool_space(config),
                     probe_unclaimed(config),
                     probe_ports(config)};
  if (auto audit = probe_audit(config)) report.findings.push_back(std::move(*audit));
  auto const health = worst(report.findings);
  report.health = boost::describe::enum_to_string(health, "");
  if (output.as_json())
    output.document(wire::encode(report));
  else
    output.raw(render(report.findings));
  return health == Health::broken ? 1 : 0;
}

}  // namespace cli
