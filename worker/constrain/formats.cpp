// The table of formats. Sources: RFC 3339 (dates and times), 4122 (uuid), 5321 (email, its usual part), 1123
// (hostname), 2673 and 4291 (addresses), 3986 and 3987 (uri, iri), 6901 (json-pointer), 6570 (uri-template), ISO 8601
// (durations), 4648 (base64), E.164 (telephone numbers), and the names of Zod and Pydantic for their own types. Each
// format is a subset of its standard on which validators agree.
#include "worker/constrain/formats.hpp"

namespace bulkhead::constrain {
namespace {

#define YEAR "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
#define LEAP "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                         \
  "(?:" YEAR                                         \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|" \
  "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define TIME                                             \
  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?" \
  "(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 "(?:" OCTET "\\.){3}" OCTET
#define H16 "[0-9A-Fa-f]{1,4}"
#define IPV6                                                                       \
  "(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,7}:|(?:" H16 ":){1,6}:" H16 "|(?:" H16 \
  ":){1,5}(?::" H16 "){1,2}|(?:" H16 ":){1,4}(?::" H16                             \
  "){1,3}"                                                                         \
  "|(?:" H16 ":){1,3}(?::" H16 "){1,4}|(?:" H16 ":){1,2}(?::" H16                  \
  "){1,5}"                                                                         \
  "|" H16 ":(?::" H16 "){1,6}|:(?::" H16 "){1,7}|::|::[Ff]{4}:" IPV4 ")"
// A label has at most 63 characters. It has no hyphens in both its third and its fourth place, which RFC 5890 keeps for
// names in Punycode: an expression can't check those. A name has at most 253 characters, so at most three of its labels
// may be long, or one of the first three.
#define ALNUM "[A-Za-z0-9]"
#define INNER "[A-Za-z0-9-]"
#define LABEL_OF(more, one_less)                                                        \
  ALNUM "(?:" ALNUM "|" INNER "(?:" ALNUM "(?:" INNER "{0," more "}" ALNUM ")?|-" ALNUM \
        "(?:" INNER "{0," one_less "}" ALNUM ")?))?"
#define LABEL LABEL_OF("59", "58")
#define SHORT LABEL_OF("26", "25")  // at most 30 characters
#define HOST                                                                                     \
  "(?:" SHORT "(?:\\." SHORT "){0,7}|(?:" SHORT "\\.){0,2}" LABEL "(?:\\." SHORT "){0,4}|" LABEL \
  "(?:\\." LABEL "){0,2})"
#define ESCAPED "%[0-9A-Fa-f]{2}"
#define PATH "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|" ESCAPED ")*"
#define QUERY "(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|" ESCAPED ")*"
#define USER "[A-Za-z0-9._~-]+(?::[A-Za-z0-9._~-]*)?@"
#define PORT "(?:\\d{1,4}|[1-5]\\d{4}|6[0-4]\\d{3}|65[0-4]\\d{2}|655[0-2]\\d|6553[0-5])"
#define URI_REST                                                                 \
  "(?://(?:" USER ")?(?:[A-Za-z0-9._~-]+|\\[" IPV6 "\\])(?::" PORT ")?(?:/" PATH \
  ")?|/?[A-Za-z0-9._~+-]" PATH ")"
#define URI \
  "(?:file:///" PATH "|[A-Za-z][A-Za-z0-9+.-]*:" URI_REST ")(?:\\?" QUERY ")?(?:#" QUERY ")?"
#define REFERENCE                                                                                \
  "(?:" URI "|[A-Za-z0-9._~/-][A-Za-z0-9._~-]*(?:/[A-Za-z0-9._~-]+)*(?:\\?" QUERY ")?(?:#" QUERY \
  ")?|#" QUERY ")"
#define UUID "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define POINTER "(?:/(?:[^/~]|~[01])*)*"
#define DURATION                                                                              \
  "P(?:\\d{1,9}W|(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)" \
  "(?:T" CLOCK ")?|T" CLOCK ")"
#define CLOCK "(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S)"

#define BASE64 "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"

constexpr Format kFormats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", DURATION},
    {"email", ATOM "(?:\\." ATOM ")*@" HOST},
    {"idn-email", ATOM "(?:\\." ATOM ")*@" HOST},
    {"hostname", HOST},
    {"idn-hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"iri", URI},
    {"url", URI},
    {"uri-reference", REFERENCE},
    {"iri-reference", REFERENCE},
    {"uuid", UUID},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|" POINTER ")"},
    {"byte", BASE64},
    {"base64", BASE64},
    {"base64url", "(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2,3})?"},
    {"guid", UUID},
    {"ulid", "[0-7][0-9A-HJKMNP-TV-Z]{25}"},
    {"nanoid", "[A-Za-z0-9_-]{21}"},
    {"cuid", "c[a-z0-9]{8,32}"},
    {"cuid2", "[a-z][a-z0-9]{1,31}"},
    {"xid", "[0-9a-v]{20}"},
    {"ksuid", "[A-Za-z0-9]{27}"},
    {"cidrv4", IPV4 "/(?:3[0-2]|[12]?\\d)"},
    {"e164", "\\+[1-9]\\d{6,14}"},
    {"password", ""},
    {"binary", ""},
    {"float", ""},
    {"double", ""},
    {"int32", ""},
    {"int64", ""},
    {"text", ""},
    {"markdown", ""},
    {"path", ""},
    {"file-path", ""},
    {"directory-path", ""},
};

}  // namespace

const Format* find_format(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

}  // namespace bulkhead::constrain
