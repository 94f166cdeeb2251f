// Grammars are built from their end: each function takes what follows and returns where it begins.
#include "worker/engine/call_grammar.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "worker/constrain/constraint.hpp"
#include "worker/constrain/regex.hpp"
#include "worker/model/answer/json_text.hpp"

namespace bulkhead::engine {
namespace {

using constrain::Grammar;
using constrain::Node;
using constrain::NodeId;
using constrain::NodeKind;
using constrain::RuleId;
using constrain::Strictness;
using model::answer::Calls;
using model::answer::CallSyntax;
using model::answer::Family;
using model::answer::NameForm;
using Json = nlohmann::ordered_json;

// Schemas too large to be held are refused one after the other, each after much work.
constexpr int kMostTooLarge = 8;

constexpr const char* kAnyArguments = R"({"type": "object"})";
// Of a strict tool without a schema: it takes none.
constexpr const char* kNoArguments = R"({"type": "object", "additionalProperties": false})";

struct OfferedTool {
  std::string name;
  RuleId arguments = 0;
};

bool is_strict(const Json& function) {
  const auto asked = function.find("strict");
  return asked != function.end() && *asked == true;
}

// The part of a tool that has its name.
const Json& function_of(const Json& tool) {
  const auto function = tool.find("function");
  return function == tool.end() ? tool : *function;
}

// Arguments are an object, also where the schema leaves that open.
Json as_object(const Json& schema) {
  Json out = schema;
  const auto type = out.find("type");
  const bool one_of_many =
      type != out.end() && type->is_array() && std::ranges::find(*type, "object") != type->end();
  if (type == out.end() || one_of_many) out["type"] = "object";
  return out;
}

class Builder {
 public:
  Builder(const Family& family, const CallWish& wish,
          const std::function<std::string(std::string_view)>& spell)
      : calls_(family.calls), wish_(wish), spell_(spell), grammar_(std::make_shared<Grammar>()) {}

  Result<CallGrammar> make() {
    grammar_->root = grammar_->add_rule();
    BULKHEAD_RETURN_IF_ERROR(read_tools());
    const NodeId end = grammar_->add(Node{});
    NodeId after = end;
    const bool more = !wish_.one_call && repeats();
    if (more) after = grammar_->add(choice({}));
    const NodeId first = block(after);
    // The blanks behind a block may be the answer's last.
    if (more) grammar_->nodes[after].branches = {end, blanks(grammar_->add(choice({end, first})))};
    grammar_->rules[grammar_->root] = blanks(first);
    BULKHEAD_RETURN_IF_ERROR(grammar_->finish());
    return CallGrammar{std::move(grammar_), std::move(warnings_)};
  }

 private:
  // ---- tools ----

  Status read_tools() {
    const Json tools = Json::parse(wish_.tools, nullptr, false);
    if (!tools.is_array()) return Error(ErrorCode::kInvalidArgument, "tools is not an array");
    for (const Json& tool : tools) {
      const Json& function = function_of(tool);
      std::string name = function.value("name", "");
      if (!wish_.named.empty() && name != wish_.named) continue;
      BULKHEAD_TRY(const RuleId arguments, arguments_of(function, name));
      tools_.push_back({std::move(name), arguments});
    }
    return {};
  }

  Result<RuleId> arguments_of(const Json& function, const std::string& name) {
    const auto schema = function.find("parameters");
    const bool strict = is_strict(function);
    if (schema == function.end() || !schema->is_object())
      return strict ? object(kNoArguments, none_) : object(kAnyArguments, any_);
    const std::string text = as_object(*schema).dump();
    const Sizes before = sizes();
    std::vector<std::string> left_out;
    Result<RuleId> rule =
        too_large_ < kMostTooLarge
            ? constrain::add_schema(*grammar_, text,
                                    strict ? Strictness::kStrict : Strictness::kLenient, left_out)
            : Result<RuleId>(Error(ErrorCode::kResourceExhausted, "the tools are too large"));
    if (!rule.ok()) {
      if (rule.error().code() == ErrorCode::kResourceExhausted) ++too_large_;
      if (strict) return rule.error().within("tool '" + name + "'");
      cut_back(before);
      warnings_.push_back("tool '" + name +
                          "' is not held to its schema: " + rule.error().message());
      return object(kAnyArguments, any_);
    }
    for (const std::string& each : left_out)
      warnings_.push_back("tool '" + name + "': " + each);
    return rule;
  }

  // What a schema that failed had put into the grammar already.
  using Sizes = std::array<std::size_t, 6>;
  Sizes sizes() const {
    const Grammar& all = *grammar_;
    return {all.nodes.size(),   all.rules.size(),   all.automata.size(),
            all.strings.size(), all.objects.size(), all.arrays.size()};
  }
  void cut_back(const Sizes& to) {
    grammar_->nodes.resize(to[0]);
    grammar_->rules.resize(to[1]);
    grammar_->automata.resize(to[2]);
    grammar_->strings.resize(to[3]);
    grammar_->objects.resize(to[4]);
    grammar_->arrays.resize(to[5]);
  }

  // The rule of a schema of ours, made once.
  Result<RuleId> object(const char* schema, RuleId& known) {
    std::vector<std::string> none;
    if (known == constrain::kNoNode) {
      BULKHEAD_TRY(known, constrain::add_schema(*grammar_, schema, Strictness::kStrict, none));
    }
    return known;
  }

  // ---- nodes ----

  static Node choice(std::vector<NodeId> branches) {
    Node node;
    node.kind = NodeKind::kSplit;
    node.branches = std::move(branches);
    return node;
  }
  NodeId mark(std::string_view text, NodeId next) {
    return text.empty() ? next : grammar_->bytes(spell_(text), next);
  }
  NodeId matching(const char* expression, NodeId next) {
    return grammar_->leaf(NodeKind::kBytes,
                          *constrain::regex_automaton(expression, constrain::Match::kWhole), next);
  }
  NodeId blanks(NodeId next) { return matching("[ \\n]{0,2}", next); }
  NodeId maybe(NodeId with, NodeId without) { return grammar_->add(choice({with, without})); }
  NodeId arguments(const OfferedTool& tool, NodeId next) {
    Node node;
    node.kind = NodeKind::kCall;
    node.index = tool.arguments;
    node.next = next;
    return grammar_->add(std::move(node));
  }
  template <typename One>
  NodeId any_tool(One one) {
    std::vector<NodeId> ways;
    for (const OfferedTool& tool : tools_)
      ways.push_back(one(tool));
    return grammar_->add(choice(std::move(ways)));
  }
  // , blanks
  NodeId comma(NodeId next) { return blanks(mark(",", blanks(next))); }

  // ---- syntaxes ----

  // Nothing says where a call without a mark ends and the next one begins; harmony's answer ends with it.
  bool repeats() const { return !calls_.bare_json && calls_.syntax != CallSyntax::kChannels; }

  NodeId block(NodeId next) {
    switch (calls_.syntax) {
      case CallSyntax::kJson:
        return json_block(next);
      case CallSyntax::kJsonList:
      case CallSyntax::kKeyedList:
        return list(next);
      case CallSyntax::kNamed:
        return sections(next);
      case CallSyntax::kChannels:
        return channels(next);
      case CallSyntax::kNone:
      case CallSyntax::kTagged:
      case CallSyntax::kBareKeys:
      case CallSyntax::kPython:
        break;  // see can_hold_calls()
    }
    return next;
  }

  NodeId closers(std::size_t from, std::size_t to, NodeId next) {
    if (calls_.closers_left_out) return next;
    for (std::size_t i = to; i-- > from;)
      next = blanks(mark(calls_.closers[i], next));
    return next;
  }

  NodeId json_block(NodeId next) {
    const NodeId call = json_call(closers(0, calls_.closers.size(), next));
    std::vector<NodeId> ways;
    for (const std::string& open : calls_.opens)
      ways.push_back(mark(open, blanks(call)));
    if (calls_.bare_json) ways.push_back(call);
    return grammar_->add(choice(std::move(ways)));
  }

  // {"name": N, "arguments": {...}}, with an id before or behind where the family has one
  NodeId json_call(NodeId next) {
    const auto& keys = calls_.keys;
    const auto key = [&](const std::string& name, NodeId value) {
      return mark(model::answer::json_quoted(name), blanks(mark(":", blanks(value))));
    };
    const char* const id = "\"[A-Za-z0-9_\\-]{1,40}\"";
    NodeId end = blanks(mark("}", next));
    if (!keys.id.empty() && keys.id_last)
      end =
          maybe(end, comma(key(keys.id, matching("\"[A-Za-z0-9]{9}\"", blanks(mark("}", next))))));
    const NodeId named = any_tool([&](const OfferedTool& tool) {
      const NodeId value = arguments(tool, end);
      std::vector<NodeId> ways;
      for (const std::string& name : keys.arguments)
        ways.push_back(key(name, value));
      return mark(model::answer::json_quoted(tool.name), comma(grammar_->add(choice(ways))));
    });
    NodeId first = key(keys.name, named);
    if (!keys.id.empty() && !keys.id_last) first = key(keys.id, matching(id, comma(first)));
    return mark("{", blanks(first));
  }

  // {N: {...}}
  NodeId keyed_call(NodeId next) {
    const NodeId end = blanks(mark("}", next));
    return mark("{", blanks(any_tool([&](const OfferedTool& tool) {
                  return mark(model::answer::json_quoted(tool.name),
                              blanks(mark(":", blanks(arguments(tool, end)))));
                })));
  }

  NodeId list(NodeId next) {
    const NodeId close = blanks(mark("]", closers(0, calls_.closers.size(), next)));
    const NodeId after = grammar_->add(choice({close}));
    const NodeId item =
        calls_.syntax == CallSyntax::kKeyedList ? keyed_call(after) : json_call(after);
    if (!wish_.one_call) grammar_->nodes[after].branches.push_back(comma(item));
    std::vector<NodeId> ways;
    for (const std::string& open : calls_.opens)
      ways.push_back(mark(open, blanks(mark("[", blanks(item)))));
    return grammar_->add(choice(std::move(ways)));
  }

  // Calls with marks of their own, within a section's where the family has one.
  NodeId sections(NodeId next) {
    std::vector<NodeId> ways;
    const std::size_t closers_of_call = calls_.closers.size() - (calls_.section.empty() ? 0 : 1);
    if (!calls_.section.empty()) {
      const NodeId close = closers(closers_of_call, calls_.closers.size(), next);
      const NodeId after = grammar_->add(choice({close}));
      const NodeId call = named_call(closers_of_call, after);
      if (!wish_.one_call) grammar_->nodes[after].branches.push_back(blanks(call));
      ways.push_back(mark(calls_.section, blanks(call)));
    }
    // A section's mark may be forgotten.
    ways.push_back(named_call(closers_of_call, next));
    return grammar_->add(choice(std::move(ways)));
  }

  NodeId named_call(std::size_t closers_of_call, NodeId next) {
    const bool typed = calls_.name_form == NameForm::kTyped;  // the first closer is the fence's
    const NodeId end = closers(typed ? 1 : 0, closers_of_call, next);
    const NodeId fenced = typed ? blanks(mark(calls_.closers[0], end)) : end;
    const NodeId name = any_tool([&](const OfferedTool& tool) {
      const NodeId value = arguments(tool, end);
      switch (calls_.name_form) {
        case NameForm::kPlain:
        case NameForm::kCallWord:
          return plain_name(tool, value);
        case NameForm::kWithIndex:
          return mark("functions." + tool.name,
                      matching(":[0-9]{1,3}", mark(calls_.name_ends[0], value)));
        case NameForm::kTyped:
          return maybe(mark(tool.name, mark(calls_.name_ends[0], value)),
                       mark("function", mark(calls_.name_ends[0], mark(tool.name + "\n```json\n",
                                                                       arguments(tool, fenced)))));
      }
      return value;
    });
    std::vector<NodeId> ways;
    for (const std::string& open : calls_.opens)
      ways.push_back(mark(open, name));
    return grammar_->add(choice(std::move(ways)));
  }

  // NAME end, or NAME id_open ID end
  NodeId plain_name(const OfferedTool& tool, NodeId value) {
    NodeId behind = mark(calls_.name_ends[0], value);
    if (!calls_.id_open.empty())
      behind = maybe(behind, mark(calls_.id_open, matching("[A-Za-z0-9]{9}", behind)));
    return mark(tool.name, behind);
  }

  // Behind `to=`, which the header's other forms have before their channel or behind it.
  NodeId channels(NodeId next) {
    const NodeId name = any_tool([&](const OfferedTool& tool) {
      const NodeId body = mark("<|message|>", arguments(tool, next));
      const NodeId marked = maybe(mark("<|constrain|>json", body), body);
      // Without its mark the word needs a space, else it would belong to the name.
      const NodeId type = maybe(mark(" ", maybe(mark("json", body), marked)), marked);
      return mark("functions." + tool.name, maybe(mark("<|channel|>commentary", type), type));
    });
    const NodeId recipient = mark("to=", name);
    const NodeId header =
        maybe(mark("<|channel|>commentary ", recipient), maybe(mark(" ", recipient), recipient));
    return maybe(mark("<|start|>assistant", header), header);
  }

  const Calls& calls_;
  const CallWish& wish_;
  const std::function<std::string(std::string_view)>& spell_;
  std::shared_ptr<Grammar> grammar_;
  std::vector<OfferedTool> tools_;
  std::vector<std::string> warnings_;
  RuleId any_ = constrain::kNoNode, none_ = constrain::kNoNode;
  int too_large_ = 0;
};

}  // namespace

bool can_hold_calls(const Family& family) {
  switch (family.calls.syntax) {
    case CallSyntax::kJson:
    case CallSyntax::kJsonList:
    case CallSyntax::kKeyedList:
    case CallSyntax::kNamed:
    case CallSyntax::kChannels:
      return true;
    case CallSyntax::kNone:
    case CallSyntax::kTagged:
    case CallSyntax::kBareKeys:
    case CallSyntax::kPython:
      return false;
  }
  return false;
}

bool any_strict_tool(std::string_view tools) {
  const Json all = Json::parse(tools, nullptr, false);
  return all.is_array() && std::ranges::any_of(all, [](const Json& tool) {
           return tool.is_object() && is_strict(function_of(tool));
         });
}

Result<CallGrammar> make_call_grammar(const Family& family, const CallWish& wish,
                                      const std::function<std::string(std::string_view)>& spell) {
  return Builder(family, wish, spell).make();
}

}  // namespace bulkhead::engine
