// Makes nodes of the members of enum and const.
#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

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

// Makes the nodes of constant arrays and objects. A constant is a sequence of parts, so the constants form a tree.
// Constants that begin alike share the nodes of their beginnings, and constants that end alike share those of their
// ends. Where constants differ in a string or a number, one leaf holds all these strings and numbers. The state in
// which the leaf's text ends selects the next node (Node::ways_on). So a text is at few nodes at a time, even among
// many constants.
class SchemaCompiler::ConstantTree {
 public:
  ConstantTree(SchemaCompiler& compiler, NodeId end)
      : compiler_(compiler), grammar_(compiler.grammar_), end_(end) {}

  NodeId node_of(const std::vector<const Json*>& values) {
    std::vector<Parts> all(values.size());
    std::vector<const Parts*> group;
    for (std::size_t i = 0; i < values.size(); ++i) {
      add(*values[i], all[i]);
      group.push_back(&all[i]);
    }
    return from(group, 0);
  }

 private:
  enum class Kind : std::uint8_t { kBlanks, kBytes, kKey, kString, kScalar };
  struct Part {
    Kind kind = Kind::kBlanks;
    std::string_view
        text;  // for with_blanks(); as it is; a name; a string's value; a scalar in one spelling
    const Json* scalar = nullptr;
    auto key() const { return std::tie(kind, text); }
    bool operator<(const Part& other) const { return key() < other.key(); }
    bool operator==(const Part& other) const { return key() == other.key(); }
  };
  using Parts = std::vector<Part>;
  struct Way {
    const Part* part = nullptr;
    NodeId next = kNoNode;
  };

  void add(const Json& value, Parts& out) {
    const bool array = value.is_array();
    if (value.is_string()) {
      out.push_back({Kind::kString, value.get_ref<const std::string&>()});
    } else if (!value.is_structured()) {
      std::string& text = texts_.emplace_back(value.dump());
      if (text.ends_with(".0")) text.resize(text.size() - 2);  // 1.0 is 1
      out.push_back({Kind::kScalar, text, &value});
    } else if (value.empty()) {
      out.push_back({Kind::kBytes, array ? "[]" : "{}"});
    } else {
      const char* before = array ? "\\[_" : "\\{_";
      for (auto member = value.begin(); member != value.end(); ++member) {
        out.push_back({Kind::kBlanks, std::exchange(before, ",_")});
        if (!array) out.push_back({Kind::kKey, member.key()});
        if (!array) out.push_back({Kind::kBlanks, ":_"});
        add(*member, out);
      }
      out.push_back({Kind::kBlanks, array ? "_\\]" : "_\\}"});
    }
  }

  // The constants of the group are equal before `at`. None is the beginning of another one.
  NodeId from(const std::vector<const Parts*>& group, std::size_t at) {
    const Parts& first = *group[0];
    std::size_t apart = at;
    const auto same = [&](const Parts* each) { return (*each)[apart] == first[apart]; };
    while (apart < first.size() && std::ranges::all_of(group, same))
      ++apart;
    NodeId next = apart == first.size() ? end_ : choice(group, apart);
    while (apart-- > at)
      next = node(first[apart], next);
    return next;
  }

  NodeId choice(const std::vector<const Parts*>& group, std::size_t at) {
    std::map<Part, std::vector<const Parts*>> groups;
    for (const Parts* each : group)
      groups[(*each)[at]].push_back(each);
    Node split;
    split.kind = NodeKind::kSplit;
    std::vector<Way> strings, scalars;
    for (const auto& [part, members] : groups) {
      const Way way{&part, from(members, at + 1)};
      const bool quoted = part.kind == Kind::kString || (part.kind == Kind::kKey && !marked());
      if (part.kind == Kind::kScalar) {
        scalars.push_back(way);
      } else if (quoted && !marked() && compiler_.never_ == nullptr) {
        strings.push_back(way);
      } else {
        split.branches.push_back(node(part, way.next));
      }
    }
    if (!strings.empty()) split.branches.push_back(leaf(strings));
    if (!scalars.empty()) split.branches.push_back(leaf(scalars));
    return split.branches.size() == 1 ? split.branches[0] : grammar_.add(std::move(split));
  }

  bool marked() const { return compiler_.notation_.form == Notation::Form::kMarked; }

  // Returns the texts as which the part, a string or a scalar, may be written.
  std::vector<std::u32string> texts_of(const Part& part) const {
    std::vector<std::u32string> out;
    if (part.kind == Kind::kScalar) {
      compiler_.spellings(*part.scalar, out);
    } else if (!decode_utf8(part.text, out.emplace_back())) {
      out.back().clear();
    }
    return out;
  }

  // Makes one leaf of all the ways, which are strings or scalars.
  NodeId leaf(const std::vector<Way>& ways) {
    std::vector<std::u32string> all;
    for (const Way& way : ways)
      std::ranges::move(texts_of(*way.part), std::back_inserter(all));
    const bool scalar = ways[0].part->kind == Kind::kScalar;
    const NodeId made = scalar ? grammar_.leaf(NodeKind::kBytes, literals(all, true), ways[0].next)
                               : compiler_.literal_string(all, ways[0].next);
    if (std::ranges::all_of(ways, [&](const Way& way) { return way.next == ways[0].next; }))
      return made;
    Node& node = grammar_.nodes[made];
    const Dfa& dfa =
        scalar ? *grammar_.automata[node.index] : *grammar_.strings[node.index].contents;
    std::vector<NodeId> after(dfa.states.size(), kNoNode);
    for (const Way& way : ways) {
      for (const std::u32string& text : texts_of(*way.part)) {
        std::uint32_t state = 0;
        for (const char32_t code : text)
          state = dfa.step(state, code);
        after[state] = way.next;
      }
    }
    node.ways_on = static_cast<std::uint32_t>(grammar_.continuations.size());
    grammar_.continuations.push_back(std::move(after));
    return made;
  }

  NodeId node(const Part& part, NodeId next) {
    const auto known = nodes_.find({part, next});
    if (known != nodes_.end()) return known->second;
    const NodeId made = new_node(part, next);
    nodes_.emplace(std::pair(part, next), made);
    return made;
  }
  NodeId new_node(const Part& part, NodeId next) {
    if (grammar_.nodes.size() > kMostNodes) return next;  // the schema is refused as too large
    switch (part.kind) {
      case Kind::kBlanks:
        return compiler_.with_blanks(part.text.data(), next);
      case Kind::kBytes:
        return grammar_.bytes(part.text, next);
      case Kind::kKey:
        return compiler_.key_constant(std::string(part.text), next);
      case Kind::kString:
        return compiler_.literal_string(texts_of(part), next);
      case Kind::kScalar:
        return grammar_.leaf(NodeKind::kBytes, literals(texts_of(part), true), next);
    }
    return next;
  }

  SchemaCompiler& compiler_;
  Grammar& grammar_;
  const NodeId end_;
  std::deque<std::string> texts_;
  std::map<std::pair<Part, NodeId>, NodeId> nodes_;  // parts before equal ends are shared
};

void SchemaCompiler::constants(const std::vector<Json>& members, NodeId end,
                               std::vector<NodeId>& ways) {
  std::vector<std::u32string> strings, scalars;
  std::vector<const Json*> structured;
  for (const Json& member : members) {
    std::u32string text;
    if (member.is_structured()) {
      structured.push_back(&member);
    } else if (!member.is_string()) {
      spellings(member, scalars);
    } else if (decode_utf8(member.get_ref<const std::string&>(), text)) {
      strings.push_back(std::move(text));
    }
  }
  if (!structured.empty()) ways.push_back(ConstantTree(*this, end).node_of(structured));
  if (!strings.empty()) ways.push_back(literal_string(strings, end));
  if (!scalars.empty()) {
    ways.push_back(grammar_.leaf(NodeKind::kBytes, literals(scalars, true), end));
  }
}

}  // namespace bulkhead::constrain
