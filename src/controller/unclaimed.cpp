#include "controller/unclaimed.hpp"

#include "base/log.hpp"

#include <algorithm>

namespace controller {
namespace {

constexpr std::size_t told_max = 100;

/// True when something is in `now` that was not in `before`. Takes `now` over.
bool grows(std::vector<std::string>& before, std::vector<std::string> now) {
  std::ranges::sort(now);
  bool const more = !std::ranges::includes(before, now);
  before = std::move(now);
  return more;
}

}  // namespace

void Unclaimed::found_sandboxes(std::string const& node, std::vector<std::string> ids) {
  if (grows(sandboxes_, std::move(ids))) log(node);
}

void Unclaimed::found_snapshots(std::string const& node, std::vector<std::string> ids) {
  if (grows(snapshots_, std::move(ids))) log(node);
}

void Unclaimed::tell(wire::NodeReport& report) const {
  report.unclaimed.clear();  // a worker has no say in this
  report.unclaimed_total = static_cast<std::uint32_t>(sandboxes_.size() + snapshots_.size());
  for (auto const* list : {&sandboxes_, &snapshots_}) {
    for (auto const& one : *list) {
      if (report.unclaimed.size() < told_max) report.unclaimed.push_back(one);
    }
  }
}

void Unclaimed::log(std::string const& node) const {
  wire::NodeReport report;
  tell(report);
  std::string ids;
  for (auto const& one : report.unclaimed)
    ids += (ids.empty() ? "" : " ") + one;
  base::log::error("at_rest_and_unclaimed",
                   {{"node", node},
                    {"sandboxes", sandboxes_.size()},
                    {"snapshots", snapshots_.size()},
                    {"ids", ids},
                    {"what",
                     "the database has never heard of them: it is not the one that they were made "
                     "with, or an older copy of it; they are kept, start with the right database, "
                     "or let them go (docs/guide/lifecycle.md)"}});
}

}  // namespace controller
