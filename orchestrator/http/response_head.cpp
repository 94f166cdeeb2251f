#include "orchestrator/http/response_head.hpp"

#include <boost/beast/http/status.hpp>

#include "config/base/log.hpp"

namespace bulkhead::orchestrator {

namespace {

void append_fields(std::string& head, const HeaderFields& fields) {
  for (const auto& [name, value] : fields)
    head += name + ": " + value + "\r\n";
}

std::string status_line(int status) {
  namespace http = boost::beast::http;
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
}

}  // namespace

bool may_have_body(int status) {
  return status != 204 && status != 304;
}

std::string response_head(const HttpResponse& response, const HeaderFields& extra,
                          std::string_view last_fields) {
  std::string head = status_line(response.status);
  if (may_have_body(response.status)) {
    head += "Content-Type: " + response.content_type + "\r\n";
    head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  }
  append_fields(head, response.headers);
  append_fields(head, extra);
  head += last_fields;
  head += "\r\n";
  return head;
}

std::string stream_head(std::string_view content_type, const HeaderFields& extra, bool chunked,
                        std::string_view last_fields) {
  std::string head = status_line(200);
  head += fmt::format("Content-Type: {}\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
                      content_type);
  append_fields(head, extra);
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  head += last_fields;
  head += "\r\n";
  return head;
}

}  // namespace bulkhead::orchestrator
