// The references and places of schema_document.hpp.
#include "worker/constrain/schema_document.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "worker/model/unicode.hpp"

namespace bulkhead::constrain {
namespace {

constexpr std::size_t kMostSchemaBytes = 4U << 20;
constexpr std::size_t kMostNesting = 256;
// An object's members are looked up one by one, so reading an object takes the square of their number. Objects of up to
// kFewMembers take no time worth counting. One object may have kMostMembers; several wide ones share its time.
constexpr std::size_t kFewMembers = 512;
constexpr std::size_t kMostMembers = 4096;

// An object or array that a text has opened and not closed yet.
struct Open {
  std::string_view name;  // with its quotes; empty in an array
  bool object = false;
  std::size_t members = 1;
};

std::string called(const Open& object) {
  return object.name.empty() ? "an object" : shortened(object.name);
}

// The parser makes the nearest double of an integer beyond 64 bits, and answers would be held to that one.
bool is_rounded(std::string_view number) {
  if (number.size() < 19 || number.find_first_of(".eE") != number.npos) return false;
  const char* const end = number.data() + number.size();
  std::int64_t with_sign = 0;
  std::uint64_t without = 0;
  if (std::from_chars(number.data(), end, with_sign).ec == std::errc() ||
      std::from_chars(number.data(), end, without).ec == std::errc())
    return false;
  double value = 0;
  std::array<char, 400> exact;
  if (std::from_chars(number.data(), end, value).ec != std::errc()) return true;
  const auto made = std::to_chars(exact.begin(), exact.end(), value, std::chars_format::fixed, 0);
  return number != std::string_view(exact.begin(), made.ptr);
}

// Says what makes a text's shape or numbers larger than those of any useful schema, before the parser builds its value;
// empty if nothing does.
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
    } else if (c == '-' || (c >= '0' && c <= '9')) {
      const std::size_t end = std::min(text.find_first_not_of("+-.0123456789eE", i), text.size());
      const std::string_view number = text.substr(i, end - i);
      i = end - 1;
      const std::string_view owner = name.empty() && !open.empty() ? open.back().name : name;
      if (!is_rounded(number) || owner == R"("default")" || owner == R"("examples")") continue;
      return (owner.empty() ? "" : shortened(owner) + ": ") + shortened(number) +
             " can't be enforced: it has more digits than are kept";
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

}  // namespace

std::string shortened(std::string_view text) {
  return text.size() <= 60 ? std::string(text) : std::string(text.substr(0, 57)) + "...";
}

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::read(std::string_view text) {
  if (text.size() > kMostSchemaBytes) {
    return Error(ErrorCode::kResourceExhausted, "the schema is larger than 4 MiB");
  }
  if (const std::string why = too_large(text); !why.empty())
    return Error(ErrorCode::kResourceExhausted, why);
  auto document = std::make_unique<SchemaDocument>();
  document->root_ = Json::parse(text, nullptr, false);
  const Json& root = document->root_;
  if (root.is_discarded()) {
    return Error(ErrorCode::kInvalidArgument, "the schema is not valid JSON");
  }
  if (!root.is_object() && !root.is_boolean()) {
    return Error(ErrorCode::kInvalidArgument, "a schema must be an object, true or false");
  }
  if (root.is_object() && root.contains("$schema")) {
    const Json& version = root["$schema"];
    const std::string uri = version.is_string() ? version.get<std::string>() : "";
    document->draft7_ = uri.find("draft-07") != uri.npos || uri.find("draft-06") != uri.npos ||
                        uri.find("draft-04") != uri.npos;
  }
  document->resources_[""] = &root;
  BULKHEAD_RETURN_IF_ERROR(document->walk(root, "#", "", 0));
  return document;
}

Status SchemaDocument::walk(const Json& schema, std::string path, std::string base, int depth) {
  if (!schema.is_object()) return {};
  // In draft-07 what stands beside $ref does not count.
  const bool counts = !draft7_ || !schema.contains("$ref");
  if (const auto id = schema.find("$id"); counts && id != schema.end() && id->is_string()) {
    std::string own = id->get<std::string>();
    const bool only_anchor = !own.empty() && own[0] == '#';
    if (only_anchor) {
      resources_.try_emplace(base + own, &schema);
    } else {
      if (const std::size_t hash = own.find('#'); hash != own.npos) own.resize(hash);
      base = joined(base, own);
      resources_.try_emplace(base, &schema);
    }
  }
  for (const char* keyword : {"$anchor", "$dynamicAnchor"}) {
    const auto anchor = schema.find(keyword);
    if (anchor == schema.end() || !anchor->is_string()) continue;
    resources_.try_emplace(base + "#" + anchor->get<std::string>(), &schema);
  }
  for (const auto& [key, value] : schema.items()) {
    if (!key.empty() && key[0] == '\x01') {
      return Error(ErrorCode::kInvalidArgument, "a keyword with a control character at " + path);
    }
  }
  BULKHEAD_RETURN_IF_ERROR(walk_children(schema, path, base, depth));
  places_[&schema] = {std::move(path), std::move(base)};
  return {};
}

Status SchemaDocument::walk_children(const Json& schema, const std::string& path,
                                     const std::string& base, int depth) {
  for (const Child& child : kChildren) {
    const auto found = schema.find(child.keyword);
    if (found == schema.end()) continue;
    const std::string here = path + "/" + child.keyword;
    const bool list = child.holds == Holds::kList || child.holds == Holds::kSchemaOrList;
    if (list && found->is_array()) {
      for (std::size_t i = 0; i < found->size(); ++i) {
        BULKHEAD_RETURN_IF_ERROR(
            walk((*found)[i], here + "/" + std::to_string(i), base, depth + 1));
      }
    } else if (child.holds == Holds::kObject && found->is_object()) {
      for (const auto& [key, value] : found->items()) {
        BULKHEAD_RETURN_IF_ERROR(walk(value, here + "/" + escape_pointer(key), base, depth + 1));
      }
    } else if (child.holds != Holds::kObject) {
      BULKHEAD_RETURN_IF_ERROR(walk(*found, here, base, depth + 1));
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
  const auto place = places_.find(at);
  const std::string base = place == places_.end() ? "" : place->second.base;
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

std::string SchemaDocument::path(const Json* schema) const {
  const auto place = places_.find(schema);
  return place == places_.end() ? "#" : place->second.path;
}

const Json* SchemaDocument::keep(Json schema) {
  kept_.push_back(std::move(schema));
  return &kept_.back();
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
