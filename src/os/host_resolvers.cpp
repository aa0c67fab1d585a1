#include "os/host_resolvers.hpp"

#include "os/text_file.hpp"

#include <sstream>

namespace os {
namespace {

std::vector<std::string> name_servers(std::string const& file) {
  std::vector<std::string> found;
  std::istringstream lines(read_text(file).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, address;
    if (!(words >> word >> address) || word != "nameserver") continue;
    if (!address.starts_with("127.") && address != "::1") found.push_back(address);
  }
  return found;
}

}  // namespace

std::vector<std::string> host_resolvers(std::string const& file, std::string const& behind_stub) {
  auto found = name_servers(file);
  if (found.empty()) found = name_servers(behind_stub);
  return found;
}

}  // namespace os
