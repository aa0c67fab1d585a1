#include "wire/codec.hpp"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>

namespace wire {

base::Result<json::value> parse_json(std::string_view text, std::size_t bytes_max) {
  if (text.size() > bytes_max) {
    return base::fail(base::Code::too_large,
                      fmt::format("the JSON text is over {} bytes", bytes_max));
  }
  json::parse_options options;
  options.max_depth = 32;
  boost::system::error_code error;
  auto value = json::parse(text, error, {}, options);
  if (error)
    return base::fail(base::Code::invalid_argument,
                      fmt::format("not valid JSON: {}", error.message()));
  return value;
}

std::string to_text(json::value const& value) {
  return json::serialize(value);
}

}  // namespace wire
