// Makes nodes of the members of enum and const.
#include "worker/constrain/schema_compiler.hpp"

namespace bulkhead::constrain {

// Adds the forms in which a scalar that is not a string may be written.
void SchemaCompiler::spellings(const Json& value, std::vector<std::u32string>& out) const {
  std::string text = value.dump();
  if (notation_.form == Notation::Form::kPython && !value.is_number())
    text = value.is_null() ? "None" : value == true ? "True" : "False";
  out.emplace_back(text.begin(), text.end());
  if (!value.is_number()) return;
  if (text.find_first_of(".eE") == text.npos) {
    out.push_back(out.back() + U".0");
  } else if (text.ends_with(".0")) {
    out.emplace_back(text.begin(), text.end() - 2);
  }
}

NodeId SchemaCompiler::literal_string(const std::vector<std::u32string>& texts, NodeId next) {
  StringShape shape;
  shape.contents = literals(texts, true);
  return string_node(std::move(shape), next);
}

NodeId SchemaCompiler::constants(const std::vector<Json>& members, NodeId end,
                                 std::vector<NodeId>& ways) {
  std::vector<std::u32string> strings, scalars;
  for (const Json& member : members) {
    std::u32string text;
    if (member.is_structured()) {
      ways.push_back(structured(member, end));
    } else if (!member.is_string()) {
      spellings(member, scalars);
    } else if (decode_utf8(member.get_ref<const std::string&>(), text)) {
      strings.push_back(std::move(text));
    }
  }
  if (!strings.empty()) ways.push_back(literal_string(strings, end));
  if (!scalars.empty()) {
    ways.push_back(grammar_.leaf(NodeKind::kBytes, literals(scalars, true), end));
  }
  return end;
}

NodeId SchemaCompiler::one_constant(const Json& value, NodeId next) {
  if (value.is_structured()) return structured(value, next);
  if (value.is_string()) {
    std::u32string text;
    if (!decode_utf8(value.get_ref<const std::string&>(), text)) text.clear();
    return literal_string({text}, next);
  }
  std::vector<std::u32string> scalars;
  spellings(value, scalars);
  return grammar_.leaf(NodeKind::kBytes, literals(scalars, true), next);
}

NodeId SchemaCompiler::structured(const Json& value, NodeId next) {
  const bool array = value.is_array();
  if (value.empty()) return grammar_.bytes(array ? "[]" : "{}", next);
  next = with_blanks(array ? "_\\]" : "_\\}", next);
  for (std::size_t i = value.size(); i-- > 0;) {
    const auto member = std::next(value.begin(), static_cast<std::ptrdiff_t>(i));
    next = one_constant(*member, next);
    if (!array) next = key_constant(member.key(), with_blanks(":_", next));
    next = with_blanks(i > 0 ? ",_" : (array ? "\\[_" : "\\{_"), next);
  }
  return next;
}

}  // namespace bulkhead::constrain
