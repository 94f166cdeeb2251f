// Renders a template with variables given as JSON.
#pragma once

#include <string>
#include <string_view>

#include "worker/model/template/json.hpp"
#include "worker/model/template/template.hpp"

namespace bulkhead::jinja::testing {

inline Environment at_noon() {
  Environment environment;
  environment.now.tm_year = 2026 - 1900;
  environment.now.tm_mon = 0;
  environment.now.tm_mday = 15;
  environment.now.tm_hour = 12;
  environment.now.tm_wday = 4;
  environment.now.tm_yday = 14;
  return environment;
}

// `variables` is a JSON object. Its strings count as a user's.
inline Result<std::vector<Piece>> pieces(std::string_view source, std::string_view variables = "{}",
                                         bool extensions = true, const Limits& limits = {}) {
  BULKHEAD_TRY(const Template parsed, Template::parse(source));
  Environment environment = at_noon();
  environment.extensions = extensions;
  const auto define = [variables](Interpreter& run) {
    const Value given = read_json(run, variables, Origin::kUser);
    for (const Dict::Entry& entry : given.as_dict()->entries)
      run.define(entry.key.as_text()->view(), entry.value);
  };
  return parsed.render(environment, variables.size(), define, limits);
}

// Returns the text, or "ERROR: ..." if something failed.
inline std::string rendered(std::string_view source, std::string_view variables = "{}",
                            bool extensions = true) {
  const auto made = pieces(source, variables, extensions);
  if (!made.ok()) return "ERROR: " + made.error().message();
  std::string text;
  for (const Piece& piece : made.value())
    text += piece.text;
  return text;
}

// Returns the text with user text between « and ».
inline std::string marked(std::string_view source, std::string_view variables) {
  const auto made = pieces(source, variables);
  if (!made.ok()) return "ERROR: " + made.error().message();
  std::string text;
  for (const Piece& piece : made.value())
    text += piece.from_user ? "«" + piece.text + "»" : piece.text;
  return text;
}

}  // namespace bulkhead::jinja::testing
