#pragma once

#include "async/task.hpp"
#include "http/client.hpp"
#include "wire/credential.hpp"

#include <cstring>

/// The way to the credential broker, for whoever takes a value from a user.
namespace controlplane {

/// A value that was decoded into a body, wiped with it.
struct Wipe {
  std::string& value;

  ~Wipe() { explicit_bzero(value.data(), value.size()); }
};

class Sealer {
 public:
  Sealer(boost::asio::any_io_executor executor, std::string broker_socket);

  /// invalid_argument with the broker's words; unavailable when it cannot be asked. The value is
  /// wiped either way.
  async::Task<wire::Sealed> seal(wire::Seal request, base::Deadline deadline);

 private:
  http::Client broker_;
};

}  // namespace controlplane
