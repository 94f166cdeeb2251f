#include "tools/cli/http_client.hpp"

#include <limits>
#include <utility>  // before Asio: GCC 12 needs it there

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

namespace bulkhead::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr std::size_t kMaxWholeBody = 64 << 20;
constexpr auto kLookEvery = std::chrono::milliseconds(50);
constexpr auto kConnectTimeout = std::chrono::seconds(10);

Error stopped_error() {
  return Error(ErrorCode::kUnavailable, "stopped");
}

}  // namespace

Result<Url> parse_url(const std::string& text) {
  const auto wrong = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument,
                 "'" + text + "' is not an address like http://127.0.0.1:8484: " + why);
  };
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    return wrong(
        "the daemon speaks plain HTTP; for TLS go through a proxy and name the proxy's HTTP side");
  }
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  Url url;
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.prefix = std::string(rest.substr(slash));
    rest = rest.substr(0, slash);
  }
  while (url.prefix.ends_with('/'))
    url.prefix.pop_back();
  // The API's clients end their base address in /v1; the paths here bring their own.
  if (url.prefix.ends_with("/v1")) url.prefix.resize(url.prefix.size() - 3);
  if (rest.starts_with('[')) {
    const std::size_t close = rest.find(']');
    if (close == std::string_view::npos) return wrong("the ']' is missing");
    url.host = std::string(rest.substr(1, close - 1));
    rest = rest.substr(close + 1);
  } else {
    const std::size_t colon = rest.find(':');
    url.host = std::string(rest.substr(0, colon));
    rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon);
  }
  if (url.host.empty()) return wrong("it names no host");
  if (rest.empty()) {
    url.port = "80";
  } else {
    url.port = std::string(rest.substr(1));
    const bool digits = url.port.find_first_not_of("0123456789") == std::string::npos;
    if (rest[0] != ':' || url.port.empty() || !digits || url.port.size() > 5 ||
        std::stoi(url.port) > 65535) {
      return wrong("its port is no number from 0 to 65535");
    }
  }
  return url;
}

Result<HttpResponse> HttpClient::perform(const char* method, const std::string& path,
                                         const std::string& body, const OnBytes& on_bytes) {
  try {
    asio::io_context context;
    beast::tcp_stream stream(context);

    // Runs what was started until it ends, looking at stop_ now and then. False: stopped.
    const auto run = [&](const bool& done) {
      while (!done) {
        context.restart();
        context.run_for(kLookEvery);
        if (!done && stopped()) {
          stream.close();
          context.restart();
          context.run();  // the cancelled operation ends
          return false;
        }
      }
      return true;
    };
    const auto failed = [&](const std::string& what, const beast::error_code& code) {
      return Error(ErrorCode::kUnavailable, what + " " + url_text_ + ": " + code.message());
    };

    tcp::resolver resolver(context);
    beast::error_code code;
    const auto endpoints = resolver.resolve(url_.host, url_.port, code);
    if (code) return failed("looking up", code);

    bool done = false;
    stream.expires_after(kConnectTimeout);
    stream.async_connect(endpoints, [&](const beast::error_code& result, const tcp::endpoint&) {
      code = result;
      done = true;
    });
    if (!run(done)) return stopped_error();
    if (code == asio::error::connection_refused) {
      return Error(ErrorCode::kUnavailable,
                   "nothing listens on " + url_text_ +
                       "; start it with `bulkheadd`, or name another address with --url");
    }
    if (code) return failed("connecting to", code);
    stream.expires_never();  // the daemon bounds a request's time (server.request_timeout_s)
    stream.socket().set_option(tcp::no_delay(true), code);

    http::request<http::string_body> request;
    request.method_string(method);
    request.target(url_.prefix + path);
    request.version(11);
    const std::string host =
        url_.host.find(':') == std::string::npos ? url_.host : "[" + url_.host + "]";
    request.set(http::field::host, host + ":" + url_.port);
    request.set(http::field::user_agent, "bulkhead");
    request.set(http::field::connection, "close");
    if (!api_key_.empty()) request.set(http::field::authorization, "Bearer " + api_key_);
    if (!body.empty()) request.set(http::field::content_type, "application/json");
    request.body() = body;
    request.prepare_payload();

    done = false;
    http::async_write(stream, request, [&](const beast::error_code& result, std::size_t) {
      code = result;
      done = true;
    });
    if (!run(done)) return stopped_error();
    // A server that refuses a request early may close before it has read the body: its answer is
    // still there to read.
    const beast::error_code write_code = code;

    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());  // the loop below has its own
    char chunk[16384];
    done = false;
    http::async_read_header(stream, buffer, parser,
                            [&](const beast::error_code& result, std::size_t) {
                              code = result;
                              done = true;
                            });
    if (!run(done)) return stopped_error();
    if (code) return write_code ? failed("writing to", write_code) : failed("reading from", code);

    HttpResponse response;
    response.status = static_cast<int>(parser.get().result_int());
    const auto type = parser.get()[http::field::content_type];
    response.content_type = std::string(type.data(), type.size());
    const bool streaming = on_bytes != nullptr && response.status == 200;
    while (!parser.is_done()) {
      parser.get().body().data = chunk;
      parser.get().body().size = sizeof chunk;
      parser.get().body().more = true;
      done = false;
      http::async_read_some(stream, buffer, parser,
                            [&](const beast::error_code& result, std::size_t) {
                              code = result;
                              done = true;
                            });
      if (!run(done)) return stopped_error();
      const std::string_view bytes(chunk, sizeof chunk - parser.get().body().size);
      if (!bytes.empty()) {
        if (streaming) {
          BULKHEAD_RETURN_IF_ERROR(on_bytes(bytes));
        } else {
          if (response.body.size() + bytes.size() > kMaxWholeBody) {
            return Error(ErrorCode::kResourceExhausted,
                         "the answer of " + url_text_ + " is larger than 64 MiB");
          }
          response.body.append(bytes);
        }
      }
      if (code == http::error::need_buffer) code = {};
      if (code) return failed("the answer broke off: reading from", code);
    }
    return response;
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kInternal, std::string("HTTP to ") + url_text_ + ": " + failure.what());
  }
}

}  // namespace bulkhead::cli
