// Finds rows of the table of families, and marks in a row.
#include "worker/model/answer/family.hpp"

#include <algorithm>

namespace bulkhead::model::answer {
namespace {

bool has(std::string_view text, const std::string& sign) {
  return text.find(sign) != std::string_view::npos;
}

}  // namespace

const Family& plain_family() {
  static const Family plain{.name = "plain"};
  return plain;
}

const Family& family_of_template(std::string_view template_text) {
  for (const Family& family : families()) {
    if (std::all_of(family.signs.begin(), family.signs.end(),
                    [&](const std::string& sign) { return has(template_text, sign); }))
      return family;
  }
  static const Family thinking{.name = "think", .reasoning = kThink};
  return has(template_text, kThink.close) ? thinking : plain_family();
}

bool has_mark(const Family& family, std::string_view text) {
  if (text.empty()) return false;
  const Calls& calls = family.calls;
  const Tags& tags = calls.tags;
  for (const std::string* mark :
       {&family.reasoning.open, &family.reasoning.close, &family.response.open,
        &family.response.close, &calls.section, &calls.name_tail, &calls.id_open, &calls.id_close,
        &calls.code_open, &calls.string_mark, &tags.param_open, &tags.key_close, &tags.value_open,
        &tags.value_close, &tags.call_close, &tags.type_end, &family.skip_before_name,
        &family.skip_behind_name}) {
    if (mark->find(text) != std::string::npos) return true;
  }
  for (const auto* marks : {&calls.opens, &calls.closers, &calls.name_ends, &calls.name_stops,
                            &calls.other_marks, &family.skips}) {
    for (const std::string& mark : *marks) {
      if (mark.find(text) != std::string::npos) return true;
    }
  }
  return false;
}

const Family* family_named(std::string_view name) {
  const auto found = std::find_if(families().begin(), families().end(),
                                  [&](const Family& family) { return family.name == name; });
  return found == families().end() ? nullptr : &*found;
}

}  // namespace bulkhead::model::answer
