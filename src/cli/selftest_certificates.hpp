#pragma once

#include "base/result.hpp"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// Certificates that a client must refuse, each for one reason alone, for the servers of the
/// self-test's internet.
namespace cli::selftest {

struct Flaw {
  std::string host = {};         // that shows it
  std::string alternative = {};  // the name in it; "" = only the common name, which is the host's
  bool expired = false;
  bool self_signed = false;
};

std::vector<Flaw> const& flaws();

class Issuer {
 public:
  static base::Result<std::unique_ptr<Issuer>> make();
  virtual ~Issuer() = default;

  /// Who has to be trusted so that a certificate is refused for its flaw and nothing else.
  virtual std::string const& authority_pem() const noexcept = 0;
  /// HOST.pem and HOST.key in this directory.
  virtual base::Result<void> write(Flaw const& flaw, std::string const& directory) = 0;
};

}  // namespace cli::selftest
