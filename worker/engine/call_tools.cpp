#include "worker/engine/call_tools.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <nlohmann/json.hpp>

#include "config/base/exact_json.hpp"
#include "worker/model/answer/json_text.hpp"
#include "worker/model/answer/tools.hpp"

namespace bulkhead::engine {
namespace {

using constrain::Grammar;
using constrain::RuleId;
using constrain::Strictness;
using model::answer::Calls;
using model::answer::CallSyntax;
using Json = nlohmann::ordered_json;

// The most schemas of a request that may turn out too large: each takes much work before it is refused.
constexpr int kMostTooLarge = 8;

constexpr const char* kAnyArguments = R"({"type": "object"})";
// The schema of a strict tool that has none: it takes no arguments.
constexpr const char* kNoArguments = R"({"type": "object", "additionalProperties": false})";

bool is_strict(const Json& function) {
  const auto asked = function.find("strict");
  return asked != function.end() && *asked == true;
}

// Returns the part of a tool that has its name.
const Json& function_of(const Json& tool) {
  const auto function = tool.find("function");
  return function == tool.end() ? tool : *function;
}

// Arguments must be an object, even if the schema does not say so.
Json as_object(const Json& schema) {
  Json out = schema;
  const auto type = out.find("type");
  const bool one_of_many =
      type != out.end() && type->is_array() && std::ranges::find(*type, "object") != type->end();
  if (type == out.end() || one_of_many) out["type"] = "object";
  return out;
}

bool before(const std::string& a, const std::string& b) {
  return std::ranges::lexicographical_compare(
      a, b, {}, [](unsigned char c) { return std::tolower(c); },
      [](unsigned char c) { return std::tolower(c); });
}

// Sorts the properties of a schema and of the schemas in it, by names as Jinja's `dictsort` does: templates of Gemma
// show tools and calls so, and the model writes what it saw.
Json sorted(const Json& schema, bool names = false) {
  if (schema.is_array()) {
    Json out = Json::array();
    for (const Json& each : schema)
      out.push_back(sorted(each));
    return out;
  }
  if (!schema.is_object()) return schema;
  std::vector<std::string> keys;
  for (const auto& entry : schema.items())
    keys.push_back(entry.key());
  if (names) std::ranges::stable_sort(keys, before);
  Json out = Json::object();
  for (const std::string& key : keys) {
    const bool data = !names && (key == "enum" || key == "const" || key == "default");
    out[key] = data ? schema[key] : sorted(schema[key], !names && key == "properties");
  }
  return out;
}

class ToolReader {
 public:
  ToolReader(Grammar& grammar, const Calls& calls, constrain::Notation notation)
      : grammar_(grammar), calls_(calls), notation_(std::move(notation)) {}

  Result<OfferedTools> read(std::string_view text, std::string_view named) {
    const Json tools = parse_exact(text);
    if (!tools.is_array()) return Error(ErrorCode::kInvalidArgument, "tools is not an array");
    BULKHEAD_TRY(offered_, model::answer::Tools::from_json(text));
    for (const Json& tool : tools) {
      const Json& function = function_of(tool);
      std::string name = function.value("name", "");
      if (!named.empty() && name != named) continue;
      OfferedTool made{.name = std::move(name)};
      BULKHEAD_RETURN_IF_ERROR(calls_.syntax == CallSyntax::kTagged
                                   ? read_members(function, made)
                                   : read_arguments(function, made));
      out_.tools.push_back(std::move(made));
    }
    return std::move(out_);
  }

 private:
  Status read_arguments(const Json& function, OfferedTool& tool) {
    const auto schema = function.find("parameters");
    if (schema == function.end() || !schema->is_object()) {
      BULKHEAD_TRY(tool.arguments,
                   is_strict(function) ? object(kNoArguments, none_) : object(kAnyArguments, any_));
      return {};
    }
    const bool by_name = calls_.syntax == CallSyntax::kBareKeys;
    const Json shown = (by_name ? sorted(as_object(*schema)) : as_object(*schema));
    const std::string text = dump_exact(shown);
    const auto add = [&](Strictness strictness, std::vector<std::string>& out) -> Status {
      BULKHEAD_TRY(tool.arguments,
                   constrain::add_schema(grammar_, text, strictness, out, notation_));
      return {};
    };
    BULKHEAD_TRY(const bool held, try_schema(function, tool, add));
    if (held) return {};
    BULKHEAD_TRY(tool.arguments, object(kAnyArguments, any_));
    return {};
  }

  Status read_members(const Json& function, OfferedTool& tool) {
    const auto schema = function.find("parameters");
    if (schema == function.end() || !schema->is_object()) {
      tool.any_members = !is_strict(function);
      return {};
    }
    const auto add = [&](Strictness strictness, std::vector<std::string>& out) -> Status {
      const constrain::TextsAre texts_are = calls_.tags.type_end.empty()
                                                ? constrain::TextsAre::kGuessed
                                                : constrain::TextsAre::kMarked;
      BULKHEAD_TRY(tool.members, constrain::add_loose_members(
                                     grammar_, dump_exact(as_object(*schema)), strictness,
                                     calls_.tags.value_close, texts_are, out));
      return check_members(tool, strictness, out);
    };
    BULKHEAD_TRY(const bool held, try_schema(function, tool, add));
    tool.any_members = !held;
    return {};
  }

  // Tags can't hold every name, and the parser must read as text what the schema calls text.
  Status check_members(OfferedTool& tool, Strictness strictness, std::vector<std::string>& out) {
    const model::answer::Tool* known = offered_.find(tool.name);
    std::vector<constrain::LooseMember> kept;
    for (constrain::LooseMember& member : tool.members) {
      const std::string& name = member.name;
      const bool writable = !name.empty() && model::answer::trimmed(name) == name &&
                            name.find(calls_.tags.key_close) == std::string::npos;
      if (calls_.tags.type_end.empty()) {
        const bool text = known != nullptr && model::answer::text_alone(*known, name);
        if (text && !member.text)
          return Error(ErrorCode::kUnsupported,
                       "\"" + name + "\" has a type that tags can't write");
        if (!text) member.text.reset();
      }
      if (writable) {
        kept.push_back(std::move(member));
      } else if (member.required && strictness == Strictness::kStrict) {
        return Error(ErrorCode::kUnsupported,
                     "\"required\": tags can't write the name " + model::answer::json_quoted(name));
      } else {
        out.push_back("\"properties\": tags can't write the name " +
                      model::answer::json_quoted(name));
      }
    }
    tool.members = std::move(kept);
    return {};
  }

  // Adds a tool's schema with `add`. Returns false if it can't be enforced and the tool is not strict.
  template <typename Add>
  Result<bool> try_schema(const Json& function, const OfferedTool& tool, Add add) {
    const bool strict = is_strict(function);
    const Sizes before = sizes();
    std::vector<std::string> left_out;
    Status added = Error(ErrorCode::kResourceExhausted, "the tools are too large");
    if (too_large_ < kMostTooLarge)
      added = add(strict ? Strictness::kStrict : Strictness::kLenient, left_out);
    if (added.ok()) {
      for (const std::string& each : left_out)
        out_.warnings.push_back("tool '" + tool.name + "': " + each);
      return true;
    }
    if (added.error().code() == ErrorCode::kResourceExhausted) ++too_large_;
    if (strict) return added.error().within("tool '" + tool.name + "'");
    cut_back(before);
    out_.warnings.push_back("tool '" + tool.name +
                            "' is not held to its schema: " + added.error().message());
    return false;
  }

  // The sizes of what the grammar had before a schema that failed.
  using Sizes = std::array<std::size_t, 6>;
  Sizes sizes() const {
    const Grammar& all = grammar_;
    return {all.nodes.size(),   all.rules.size(),   all.automata.size(),
            all.strings.size(), all.objects.size(), all.arrays.size()};
  }
  void cut_back(const Sizes& to) {
    grammar_.nodes.resize(to[0]);
    grammar_.rules.resize(to[1]);
    grammar_.automata.resize(to[2]);
    grammar_.strings.resize(to[3]);
    grammar_.objects.resize(to[4]);
    grammar_.arrays.resize(to[5]);
  }

  // Returns the rule of a schema of ours, which is made only once.
  Result<RuleId> object(const char* schema, RuleId& known) {
    std::vector<std::string> none;
    if (known == constrain::kNoNode) {
      BULKHEAD_TRY(known,
                   constrain::add_schema(grammar_, schema, Strictness::kStrict, none, notation_));
    }
    return known;
  }

  Grammar& grammar_;
  const Calls& calls_;
  const constrain::Notation notation_;
  model::answer::Tools offered_;  // the tools as the parser sees them
  OfferedTools out_;
  RuleId any_ = constrain::kNoNode, none_ = constrain::kNoNode;
  int too_large_ = 0;
};

}  // namespace

bool any_strict_tool(std::string_view tools) {
  const Json all = Json::parse(tools, nullptr, false);
  return all.is_array() && std::ranges::any_of(all, [](const Json& tool) {
           return tool.is_object() && is_strict(function_of(tool));
         });
}

std::string only_tools(std::string_view tools, std::span<const std::string> names) {
  const Json all = parse_exact(tools);
  if (!all.is_array()) return std::string(tools);
  Json kept = Json::array();
  for (const Json& tool : all) {
    const Json& function = function_of(tool);
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string()) return std::string(tools);
    if (std::ranges::find(names, name->get_ref<const std::string&>()) != names.end())
      kept.push_back(tool);
  }
  return dump_exact(kept);
}

Result<OfferedTools> add_tools(Grammar& grammar, const Calls& calls, std::string_view tools,
                               std::string_view named,
                               const std::function<std::string(std::string_view)>& spell) {
  constrain::Notation notation;
  if (calls.syntax == CallSyntax::kPython) notation.form = constrain::Notation::Form::kPython;
  if (calls.syntax == CallSyntax::kBareKeys) {
    notation = {constrain::Notation::Form::kMarked, spell(calls.string_mark), calls.string_mark};
  }
  return ToolReader(grammar, calls, std::move(notation)).read(tools, named);
}

}  // namespace bulkhead::engine
