#pragma once

#include "wire/codec.hpp"

/// POST /init of the agent: the worker tells a fresh guest who it is. The first call after boot is
/// open (no user process runs yet) and sets `init_key`; every later call must carry the same key,
/// and may bring the one that is to be carried from then on: clones of one saved machine begin with
/// one key, and each gets its own. What is absent or empty stays as it is, so a new access token
/// alone is a whole call. 204.
namespace wire {

struct AgentInit {
  std::string init_key;       // 64 hex digits, known to the worker alone
  std::string next_init_key;  // 64 hex digits; "" = the key stays
  std::string nonce;          // echoed in the header `X-Space-Nonce` of the answer
  std::string entropy;        // ≥ 64 hex digits, credited to the kernel's pool
  std::string timestamp;      // RFC 3339: the guest's clock is stepped to it
  std::string hostname;
  std::string machine_id;                  // 32 hex digits
  std::optional<std::string> accessToken;  // "" = no check
  std::optional<std::map<std::string, std::string>> envVars;
  std::optional<std::string> defaultUser;     // "user" until one comes
  std::optional<std::string> defaultWorkdir;  // "" = the user's home
  std::optional<std::string>
      caBundle;  // PEM of an authority that the guest shall trust beside its own
  bool goes_on =
      false;  // from a saved state: whom it was connected to in the world does not know it any more

  static bool required(std::string_view name) { return name == "init_key"; }
};
BOOST_DESCRIBE_STRUCT(AgentInit,
                      (),
                      (init_key,
                       next_init_key,
                       nonce,
                       entropy,
                       timestamp,
                       hostname,
                       machine_id,
                       accessToken,
                       envVars,
                       defaultUser,
                       defaultWorkdir,
                       caBundle,
                       goes_on))

/// The version of the in-guest protocol that the agent implements.
inline constexpr std::string_view envd_version = "0.6.4";
inline constexpr std::uint16_t agent_port = 49983;

}  // namespace wire
