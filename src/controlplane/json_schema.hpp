#pragma once

#include <string>

#include <boost/json/value.hpp>

/// For tests: does a value fit a schema of api/openapi.yaml? The part of OpenAPI 3.0 that the file
/// uses: type, required, properties, additionalProperties, items, enum, pattern, minimum, maximum,
/// nullable, $ref.
namespace controlplane::testing {

class Schemas {
 public:
  explicit Schemas(boost::json::value document) : document_(std::move(document)) {}

  /// What is wrong, with its place; "" when nothing is.
  std::string misfit(boost::json::value const& value,
                     boost::json::value const& schema,
                     std::string const& path = "$") const;
  /// The schema of that answer, null when the file has none for it.
  boost::json::value const* of_answer(std::string const& method,
                                      std::string const& pattern,
                                      int status,
                                      std::string const& type) const;

  boost::json::object const& document() const { return document_.as_object(); }

  /// Follows "#/components/…"; null when it leads nowhere.
  boost::json::value const* resolve(boost::json::value const& value) const;

 private:
  boost::json::value document_;
};

}  // namespace controlplane::testing
