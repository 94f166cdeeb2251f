#include "worker/model/answer/tools.hpp"

#include <algorithm>
#include <cstdint>

#include <nlohmann/json.hpp>

namespace bulkhead::model::answer {
namespace {

using Json = nlohmann::ordered_json;

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

bool all_strings(const Json& values) {
  return values.is_array() && !values.empty() &&
         std::all_of(values.begin(), values.end(),
                     [](const Json& each) { return each.is_string(); });
}

// How much may still be looked at. Schemas whose alternatives refer to one another could be walked for longer than
// anybody waits. The budget counts steps, so every process decides the same for a schema.
struct Budget {
  std::int64_t steps = 1 << 17;
  bool spend(std::size_t count = 1) { return (steps -= static_cast<std::int64_t>(count)) >= 0; }
};

// Follows a local reference ("#/$defs/City"); otherwise returns the schema itself.
const Json& resolved(const Json& schema, const Json& root, Budget& budget) {
  const Json* reference = member(schema, "$ref");
  if (reference == nullptr || !reference->is_string()) return schema;
  const auto& text = reference->get_ref<const std::string&>();
  if (text.empty() || text[0] != '#') return schema;
  const Json* at = &root;
  std::size_t begin = 1;
  while (begin < text.size() && at != nullptr && budget.spend()) {
    const std::size_t end = std::min(text.find('/', begin + 1), text.size());
    at = member(*at, text.substr(begin + 1, end - begin - 1).c_str());
    begin = end;
  }
  return at == nullptr ? schema : *at;
}

// Says whether the schema allows only strings. `depth` bounds nested alternatives. Returns false if the budget is
// spent.
bool is_text(const Json& written, const Json& root, Budget& budget, int depth = 0) {
  const Json& schema = resolved(written, root, budget);
  if (depth > 8 || !budget.spend() || !schema.is_object()) return false;
  if (const Json* type = member(schema, "type"))
    return *type == "string" || (type->is_array() && type->size() == 1 && (*type)[0] == "string");
  if (const Json* values = member(schema, "enum"))
    return budget.spend(values->size()) && all_strings(*values);
  if (const Json* value = member(schema, "const")) return value->is_string();
  if (const Json* parts = member(schema, "allOf"); parts != nullptr && parts->is_array()) {
    return std::any_of(parts->begin(), parts->end(),
                       [&](const Json& each) { return is_text(each, root, budget, depth + 1); });
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* choices = member(schema, key);
    if (choices == nullptr) continue;
    return choices->is_array() && !choices->empty() &&
           std::all_of(choices->begin(), choices->end(),
                       [&](const Json& each) { return is_text(each, root, budget, depth + 1); });
  }
  return false;
}

}  // namespace

Result<Tools> Tools::from_json(std::string_view text) {
  if (text.empty()) return Tools();
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Error(ErrorCode::kInvalidArgument, "tools is not valid JSON");
  if (json.is_null()) return Tools();
  if (!json.is_array()) return Error(ErrorCode::kInvalidArgument, "tools is not an array");
  Budget budget;
  std::vector<Tool> tools;
  for (const Json& each : json) {
    const Json* function = member(each, "function");
    if (function == nullptr) function = &each;
    const Json* name = member(*function, "name");
    if (name == nullptr || !name->is_string())
      return Error(ErrorCode::kInvalidArgument,
                   "tools[" + std::to_string(tools.size()) + "] has no function name");
    Tool tool{.name = name->get<std::string>(), .parameters = {}};
    const Json* schema = member(*function, "parameters");
    if (schema != nullptr && schema->is_object())
      tool.schema = std::make_shared<const std::string>(schema->dump());
    const Json* properties = schema == nullptr ? nullptr : member(*schema, "properties");
    if (properties != nullptr && properties->is_object()) {
      for (const auto& [key, value] : properties->items())
        tool.parameters.emplace_back(key, is_text(value, *schema, budget));
    }
    tools.push_back(std::move(tool));
  }
  return Tools(std::move(tools));
}

const Tool* Tools::find(std::string_view name) const {
  const auto found = std::find_if(tools_.begin(), tools_.end(),
                                  [&](const Tool& tool) { return tool.name == name; });
  return found == tools_.end() ? nullptr : &*found;
}

NameFit Tools::fit(std::string_view text) const {
  NameFit fit = NameFit::kNone;
  for (const Tool& tool : tools_) {
    if (tool.name == text) return NameFit::kWhole;
    if (std::string_view(tool.name).substr(0, text.size()) == text) fit = NameFit::kBeginning;
  }
  return fit;
}

struct ValueSchema::Document {
  Json root;
  Budget budget;
};

ValueSchema::ValueSchema(const Tool& tool, std::string_view key) {
  if (tool.schema == nullptr) return;
  document_ = std::make_shared<Document>(Document{Json::parse(*tool.schema, nullptr, false), {}});
  schema_ = &document_->root;
  *this = member(key);
}

// Follows references, and alternatives of which all but one are null.
ValueSchema ValueSchema::within(const void* schema) const {
  ValueSchema found;
  found.document_ = document_;
  const auto* at = static_cast<const Json*>(schema);
  for (int depth = 0; at != nullptr && depth < 8; ++depth) {
    const Json* const from = at;
    at = &resolved(*at, document_->root, document_->budget);
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      const Json* choices = answer::member(*at, key);
      if (choices == nullptr || !choices->is_array()) continue;
      const Json* only = nullptr;
      std::size_t others = 0;
      for (const Json& each : *choices) {
        const Json* type = answer::member(each, "type");
        if (type != nullptr && *type == "null") continue;
        only = &each;
        ++others;
      }
      if (others == 1) at = only;
    }
    if (at == from) break;
  }
  found.schema_ = at;
  return found;
}

bool ValueSchema::text() const {
  if (schema_ == nullptr) return false;
  return is_text(*static_cast<const Json*>(schema_), document_->root, document_->budget);
}

bool ValueSchema::allows(std::string_view type) const {
  if (schema_ == nullptr) return false;
  const auto& schema = *static_cast<const Json*>(schema_);
  const Json* types = answer::member(schema, "type");
  if (types == nullptr)
    return answer::member(schema, type == "array" ? "items" : "properties") != nullptr;
  if (types->is_array()) return std::find(types->begin(), types->end(), type) != types->end();
  return *types == type;
}

bool ValueSchema::list() const {
  return allows("array") && !allows("object");
}

bool ValueSchema::object() const {
  return allows("object") && !allows("array");
}

ValueSchema ValueSchema::member(std::string_view name) const {
  if (schema_ == nullptr) return {};
  const auto& schema = *static_cast<const Json*>(schema_);
  const Json* properties = answer::member(schema, "properties");
  const Json* found =
      properties == nullptr ? nullptr : answer::member(*properties, std::string(name).c_str());
  return within(found != nullptr ? found : answer::member(schema, "additionalProperties"));
}

ValueSchema ValueSchema::item() const {
  if (schema_ == nullptr) return {};
  return within(answer::member(*static_cast<const Json*>(schema_), "items"));
}

bool text_alone(const Tool& tool, std::string_view key) {
  const auto found = std::find_if(tool.parameters.begin(), tool.parameters.end(),
                                  [&](const auto& each) { return each.first == key; });
  return found != tool.parameters.end() && found->second;
}

}  // namespace bulkhead::model::answer
