// The references and places of schema_document.hpp.
#include "worker/constrain/schema_document.hpp"

#include <algorithm>
#include <ranges>
#include <vector>

#include "config/base/exact_json.hpp"
#include "worker/constrain/schema_limits.hpp"
#include "worker/model/unicode.hpp"

namespace bulkhead::constrain {
namespace {

constexpr std::size_t kMostSchemaBytes = 4U << 20;
constexpr std::size_t kMostNesting = 256;
// An object's members are looked up one by one, so reading an object takes the square of their number. Objects of up to
// kFewMembers take no time worth counting. One object may have kMostMembers; several wide ones share its time.
constexpr std::size_t kFewMembers = 512;
constexpr std::size_t kMostMembers = 4096;

// Each name by which a reference may lead to a schema begins with a URI.
constexpr std::size_t kMostBaseBytes = 2048;

// An object or array that a text has opened and not closed yet.
struct Open {
  std::string_view name;  // with its quotes; empty in an array
  bool object = false;
  std::size_t members = 1;
};

std::string called(const Open& object) {
  return object.name.empty() ? "an object" : shortened(object.name);
}

// Says what makes a text's shape larger than that of any useful schema, before the parser builds its value; empty if
// nothing does.
std::string too_large(std::string_view text) {
  std::vector<Open> open;  // outermost first
  std::string_view name;   // the string before the last colon
  std::size_t quote = 0;   // where the last string begins
  std::size_t cost = 0;    // the squares of the wide objects' members
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      inside = false;
      name = text.substr(quote, i + 1 - quote);
    } else if (c == '"') {
      inside = true;
      quote = i;
    } else if (c == '[' || c == '{') {
      if (open.size() == kMostNesting)
        return "the schema is nested deeper than " + std::to_string(kMostNesting);
      open.push_back({name, c == '{'});
      name = {};
    } else if ((c == ']' || c == '}') && !open.empty()) {
      const Open& closed = open.back();
      if (closed.object && closed.members > kFewMembers) cost += closed.members * closed.members;
      if (cost > kMostMembers * kMostMembers)
        return "the schema has too many objects of more than " + std::to_string(kFewMembers) +
               " members, among them " + called(closed) + "; one alone may have " +
               std::to_string(kMostMembers);
      open.pop_back();
      name = {};
    } else if (c == ',') {
      name = {};
      if (!open.empty() && open.back().object && ++open.back().members > kMostMembers)
        return "in the schema, " + called(open.back()) + " has more than " +
               std::to_string(kMostMembers) + " members";
    }
  }
  return {};
}

std::string escape_pointer(std::string_view key) {
  std::string out;
  for (const char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

// Returns a name as a step of a path in a message.
std::string step_of(std::string_view key) {
  return escape_pointer(shortened(key));
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() &&
        std::isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        std::isxdigit(static_cast<unsigned char>(text[i + 2]))) {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Resolves `reference` without its fragment against `base` (RFC 3986, as far as schemas use it).
std::string joined(const std::string& base, const std::string& reference) {
  if (reference.empty()) return base;
  const std::size_t colon = reference.find(':');
  if (colon != reference.npos && reference.find('/') > colon) return reference;
  const std::size_t scheme = base.find("://");
  const std::size_t authority = scheme == base.npos ? 0 : base.find('/', scheme + 3);
  if (reference[0] == '/') {
    return (scheme == base.npos ? "" : base.substr(0, authority)) + reference;
  }
  const std::size_t slash = base.rfind('/');
  return slash == base.npos ? reference : base.substr(0, slash + 1) + reference;
}

// Keywords whose value is a schema, a list of schemas, or an object of schemas.
enum class Holds { kSchema, kList, kObject, kSchemaOrList };
struct Child {
  const char* keyword;
  Holds holds;
};
constexpr Child kChildren[] = {
    {"$defs", Holds::kObject},
    {"definitions", Holds::kObject},
    {"properties", Holds::kObject},
    {"patternProperties", Holds::kObject},
    {"dependentSchemas", Holds::kObject},
    {"dependencies", Holds::kObject},
    {"allOf", Holds::kList},
    {"anyOf", Holds::kList},
    {"oneOf", Holds::kList},
    {"prefixItems", Holds::kList},
    {"items", Holds::kSchemaOrList},
    {"additionalItems", Holds::kSchema},
    {"additionalProperties", Holds::kSchema},
    {"unevaluatedProperties", Holds::kSchema},
    {"unevaluatedItems", Holds::kSchema},
    {"propertyNames", Holds::kSchema},
    {"contains", Holds::kSchema},
    {"not", Holds::kSchema},
    {"if", Holds::kSchema},
    {"then", Holds::kSchema},
    {"else", Holds::kSchema},
};

bool holds_names(std::string_view keyword) {
  return std::ranges::any_of(kChildren, [&](const Child& child) {
    return child.holds == Holds::kObject && child.keyword == keyword;
  });
}

// Keywords whose values are data, and those under which a schema without one of its keywords would allow less.
constexpr std::string_view kWhole[] = {"const", "enum", "not", "if", "oneOf", "contains"};

// Searches a keyword's value for integers that a double can't hold exactly, and returns the digits of the first one;
// empty if every integer fits.
// `whole`: looks into objects, too.
std::string_view rounded_in(const Json& value, bool whole) {
  if (value.is_object() && !whole) return {};
  std::string_view found = digits_of(value);
  if (value.is_structured()) {
    for (const Json& each : value) {
      if (found.empty()) found = rounded_in(each, whole);
    }
  }
  return found;
}

// Some clients write null for a keyword that they don't use: "required": null. Null is a value only in these keywords;
// as a type null is an error.
bool may_be_null(std::string_view keyword) {
  return keyword == "const" || keyword == "default" || keyword == "examples" || keyword == "type" ||
         keyword.starts_with("x-");
}

// The way to a schema, from the inside out. Its text is made only for a message: names may be long, and schemas many.
struct Trail {
  const Trail* outer = nullptr;
  std::string_view key;
  std::size_t index = 0;  // if there is no key

  std::string text() const {
    if (outer == nullptr) return "#";
    return outer->text() + '/' + (key.data() == nullptr ? std::to_string(index) : step_of(key));
  }
};

// Leaves out keywords that are null. Refuses or leaves out the keywords whose integers a double would round: answers
// would be held to other numbers. `names`: the members of `schema` are schemas by name.
Status cleaned(Json& schema, bool names, const Trail& trail, Complaints& complaints) {
  if (schema.is_array()) {
    for (std::size_t i = 0; i < schema.size(); ++i)
      BULKHEAD_RETURN_IF_ERROR(cleaned(schema[i], false, Trail{&trail, {}, i}, complaints));
  }
  if (!schema.is_object()) return {};
  for (auto member = schema.begin(); member != schema.end();) {
    const std::string& key = member.key();
    if (!names && member.value().is_null() && !may_be_null(key)) {
      member = schema.erase(member);
      continue;
    }
    const bool note = !names && (key == "default" || key == "examples" || key.starts_with("x-"));
    const bool whole = note || (!names && std::ranges::find(kWhole, key) != std::end(kWhole));
    const std::string_view digits = names ? "" : rounded_in(member.value(), whole);
    if (!digits.empty()) {
      if (!note) {
        BULKHEAD_RETURN_IF_ERROR(complaints.unsupported(
            key, trail.text(),
            shortened(digits) + " can't be enforced: it has more digits than are kept"));
      }
      member = schema.erase(member);
      continue;
    }
    if (!whole) {
      BULKHEAD_RETURN_IF_ERROR(
          cleaned(member.value(), !names && holds_names(key), Trail{&trail, key}, complaints));
    }
    ++member;
  }
  return {};
}

}  // namespace

std::string shortened(std::string_view text) {
  std::string made(text.substr(0, text.size() <= 60 ? text.size() : 57));
  if (made.size() < text.size()) made += "...";
  return made;
}

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::read(std::string_view text,
                                                             Complaints& complaints) {
  if (text.size() > kMostSchemaBytes) {
    return Error(ErrorCode::kResourceExhausted, "the schema is larger than 4 MiB");
  }
  if (const std::string why = too_large(text); !why.empty())
    return Error(ErrorCode::kResourceExhausted, why);
  auto document = std::make_unique<SchemaDocument>();
  document->root_ = parse_exact(text);
  const Json& root = document->root_;
  if (root.is_discarded()) {
    return Error(ErrorCode::kInvalidArgument, "the schema is not valid JSON");
  }
  if (!root.is_object() && !root.is_boolean()) {
    return Error(ErrorCode::kInvalidArgument, "a schema must be an object, true or false");
  }
  BULKHEAD_RETURN_IF_ERROR(cleaned(document->root_, false, Trail{}, complaints));
  if (root.is_object() && root.contains("$schema")) {
    const Json& version = root["$schema"];
    const std::string uri = version.is_string() ? version.get<std::string>() : "";
    document->draft7_ = uri.find("draft-07") != uri.npos || uri.find("draft-06") != uri.npos ||
                        uri.find("draft-04") != uri.npos;
  }
  document->resources_[""] = &root;
  BULKHEAD_RETURN_IF_ERROR(document->walk(root, {}));
  return document;
}

Status SchemaDocument::walk(const Json& schema, Place place) {
  // Messages name the place of what is no schema, too.
  if (!schema.is_object()) return places_.try_emplace(&schema, std::move(place)), Status();
  Place& noted = places_[&schema] = std::move(place);
  BULKHEAD_TRY(noted.base, names_of(schema, noted.base));
  for (const auto& entry : schema.items()) {
    if (!entry.key().empty() && entry.key()[0] == '\x01') {
      return Error(ErrorCode::kInvalidArgument,
                   "a keyword with a control character at " + path(&schema));
    }
  }
  return walk_children(schema, noted.base);
}

// Notes the names by which references may lead to the schema. Returns its base.
Result<std::size_t> SchemaDocument::names_of(const Json& schema, std::size_t base) {
  // In draft-07 what stands beside $ref does not count.
  const bool counts = !draft7_ || !schema.contains("$ref");
  if (const auto id = schema.find("$id"); counts && id != schema.end() && id->is_string()) {
    std::string own = id->get<std::string>();
    const bool only_anchor = !own.empty() && own[0] == '#';
    if (only_anchor) {
      resources_.try_emplace(bases_[base] + own, &schema);
    } else {
      if (const std::size_t hash = own.find('#'); hash != own.npos) own.resize(hash);
      bases_.push_back(joined(bases_[base], own));
      base = bases_.size() - 1;
      if (bases_[base].size() > kMostBaseBytes) {
        return Error(ErrorCode::kResourceExhausted, "\"$id\" at " + path(&schema) +
                                                        " makes a URI of more than " +
                                                        std::to_string(kMostBaseBytes) + " bytes");
      }
      resources_.try_emplace(bases_[base], &schema);
    }
  }
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const auto anchor = schema.find(keyword);
    if (anchor == schema.end() || !anchor->is_string()) continue;
    resources_.try_emplace(bases_[base] + "#" + anchor->get<std::string>(), &schema);
  }
  return base;
}

Status SchemaDocument::walk_children(const Json& schema, std::size_t base) {
  for (const Child& child : kChildren) {
    const auto found = schema.find(child.keyword);
    if (found == schema.end()) continue;
    const std::string here = std::string("/") + child.keyword;
    const bool list = child.holds == Holds::kList || child.holds == Holds::kSchemaOrList;
    if (list && found->is_array()) {
      for (std::size_t i = 0; i < found->size(); ++i)
        BULKHEAD_RETURN_IF_ERROR(
            walk((*found)[i], {&schema, here + "/" + std::to_string(i), base}));
    } else if (child.holds == Holds::kObject && found->is_object()) {
      for (const auto& [key, value] : found->items())
        BULKHEAD_RETURN_IF_ERROR(walk(value, {&schema, here + "/" + step_of(key), base}));
    } else if (child.holds != Holds::kObject) {
      BULKHEAD_RETURN_IF_ERROR(walk(*found, {&schema, here, base}));
    }
  }
  return {};
}

Result<const Json*> SchemaDocument::resolve(const Json* at, const std::string& reference) const {
  const auto nothing = [&] {
    return Error(ErrorCode::kUnsupported, "\"$ref\": nothing in this schema is \"" +
                                              shortened(reference) +
                                              "\", and no other document is read");
  };
  const Place* const from = place(at);
  const std::string& base = bases_[from == nullptr ? 0 : from->base];
  const std::size_t hash = std::min(reference.find('#'), reference.size());
  const std::string uri = joined(base, reference.substr(0, hash));
  const std::string fragment =
      hash < reference.size() ? percent_decoded(reference.substr(hash + 1)) : "";
  const auto resource = resources_.find(uri);
  if (fragment.empty() || fragment[0] == '/') {
    if (resource == resources_.end()) return nothing();
    if (fragment.empty()) return resource->second;
    const Json* found = resource->second;
    std::size_t begin = 1;
    while (true) {
      const std::size_t end = std::min(fragment.find('/', begin), fragment.size());
      std::string key = fragment.substr(begin, end - begin);
      for (std::size_t i = 0; (i = key.find('~', i)) != key.npos; ++i) {
        if (key.compare(i, 2, "~1") == 0)
          key.replace(i, 2, "/");
        else if (key.compare(i, 2, "~0") == 0)
          key.replace(i, 2, "~");
      }
      if (found->is_object() && found->contains(key)) {
        found = &(*found)[key];
      } else if (found->is_array() && !key.empty() && key.size() < 7 &&
                 key.find_first_not_of("0123456789") == key.npos &&
                 std::stoul(key) < found->size()) {
        found = &(*found)[std::stoul(key)];
      } else {
        return nothing();
      }
      if (end == fragment.size()) break;
      begin = end + 1;
    }
    if (!found->is_object() && !found->is_boolean()) return nothing();
    return found;
  }
  const auto anchor = resources_.find(uri + "#" + fragment);
  if (anchor == resources_.end()) return nothing();
  return anchor->second;
}

const SchemaDocument::Place* SchemaDocument::place(const Json* schema) const {
  if (const auto origin = made_of_.find(schema); origin != made_of_.end()) schema = origin->second;
  const auto found = places_.find(schema);
  return found == places_.end() ? nullptr : &found->second;
}

std::string SchemaDocument::path(const Json* schema) const {
  std::vector<const std::string*> steps;
  for (const Place* at = place(schema); at != nullptr; at = place(at->outer))
    steps.push_back(&at->step);
  std::string all = "#";
  for (const std::string* step : std::views::reverse(steps))
    all += *step;
  return all;
}

std::string SchemaDocument::path(const std::vector<const Json*>& schemas,
                                 std::string_view keyword) const {
  if (schemas.empty()) return path(&root_);
  const auto found =
      std::ranges::find_if(schemas, [&](const Json* each) { return each->contains(keyword); });
  return path(found == schemas.end() ? schemas[0] : *found);
}

const Json* SchemaDocument::keep(Json schema, const Json* of) {
  kept_.push_back(std::move(schema));
  if (const auto origin = made_of_.find(of); origin != made_of_.end()) of = origin->second;
  note_parts(kept_.back(), of);
  return &kept_.back();
}

void SchemaDocument::note_parts(const Json& made, const Json* of) {
  made_of_[&made] = of;
  if (!made.is_object()) return;
  for (const Child& child : kChildren) {
    const auto found = made.find(child.keyword);
    if (found == made.end()) continue;
    const bool one = child.holds == Holds::kSchema || !found->is_structured();
    if (one || (child.holds == Holds::kSchemaOrList && found->is_object())) {
      note_parts(*found, of);
      continue;
    }
    for (const Json& each : *found) {
      if (!each.is_object() || !each.contains(kLink)) note_parts(each, of);
    }
  }
}

Json SchemaDocument::link(const Json* schema) {
  links_.push_back(schema);
  return Json{{kLink, links_.size() - 1}};
}

const Json* SchemaDocument::linked(const Json& schema) const {
  const auto found = schema.find(kLink);
  return found == schema.end() ? nullptr : links_[found->get<std::size_t>()];
}

}  // namespace bulkhead::constrain
