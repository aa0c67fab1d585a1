#pragma once

#include "http/message.hpp"

#include <string>
#include <vector>

/// Which web pages may call the API. Keys travel in headers only, never in cookies, so a foreign
/// page can do nothing that it does not hold a key for; the list is there for operators who want
/// less.
namespace controlplane {

class Cors {
 public:
  /// Origins as browsers send them ("https://app.example"), or "*" for all.
  explicit Cors(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  /// Headers to add to every answer to this request; none without an Origin or for one not allowed.
  http::Headers headers(http::Headers const& request) const;
  /// True for the OPTIONS request that browsers send ahead.
  static bool is_preflight(http::RequestHead const& head);
  /// The answer to it: 204, with the methods of that path.
  http::Response preflight(http::RequestHead const& head,
                           std::vector<std::string> const& methods) const;

 private:
  std::vector<std::string> origins_;
};

}  // namespace controlplane
