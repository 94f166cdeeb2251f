#include "tools/cli/http_client.hpp"

#include <cstdio>
#include <limits>
#include <utility>  // included before Asio, because GCC 12 needs it there

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

// One request and its answer, over its own connection. perform() calls its steps in order.
class Call {
 public:
  using Limit = std::optional<std::chrono::milliseconds>;
  Call(const HttpClient& client, const Url& url, Limit longest)
      : client_(client), url_(url), longest_(longest), stream_(context_) {}

  Status connect() {
    tcp::resolver resolver(context_);
    const auto endpoints = resolver.resolve(url_.host, url_.port, code_);
    if (code_) return failed("looking up", code_);
    stream_.expires_after(kConnectTimeout);
    if (!run([&](auto done) { stream_.async_connect(endpoints, done); })) return ended_early();
    if (code_ == asio::error::connection_refused) {
      return Error(ErrorCode::kUnavailable,
                   "nothing listens on " + with_port(client_.url(), url_) +
                       "; start it with `bulkheadd`, or name another address with --url");
    }
    if (code_) return failed("connecting to", code_);
    stream_.expires_never();  // the daemon bounds a request's time (server.request_timeout_s)
    stream_.socket().set_option(tcp::no_delay(true), code_);
    return {};
  }

  Status write(http::request<http::string_body>& request) {
    if (!run([&](auto done) { http::async_write(stream_, request, done); })) return ended_early();
    // A server that refuses a request early may close the connection before it has read the body. Its answer can
    // still be read.
    write_code_ = code_;
    return {};
  }

  Result<HttpResponse> read(const HttpClient::OnBytes& on_bytes) {
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(
        std::numeric_limits<std::uint64_t>::max());  // the loop below has its own limit
    if (!run([&](auto done) { http::async_read_header(stream_, buffer, parser, done); }))
      return ended_early();
    if (code_)
      return write_code_ ? failed("writing to", write_code_) : failed("reading from", code_);

    HttpResponse response;
    response.status = static_cast<int>(parser.get().result_int());
    const auto type = parser.get()[http::field::content_type];
    response.content_type = std::string(type.data(), type.size());
    const bool streaming = on_bytes != nullptr && response.status == 200;
    char chunk[16384];
    while (!parser.is_done()) {
      parser.get().body().data = chunk;
      parser.get().body().size = sizeof chunk;
      parser.get().body().more = true;
      if (!run([&](auto done) { http::async_read_some(stream_, buffer, parser, done); }))
        return ended_early();
      const std::string_view bytes(chunk, sizeof chunk - parser.get().body().size);
      if (streaming && !bytes.empty()) {
        BULKHEAD_RETURN_IF_ERROR(on_bytes(bytes));
      } else if (response.body.size() + bytes.size() > kMaxWholeBody) {
        return Error(ErrorCode::kResourceExhausted,
                     "the answer of " + client_.url() + " is larger than 64 MiB");
      } else {
        response.body.append(bytes);
      }
      if (code_ == http::error::need_buffer) code_ = {};
      if (code_) return failed("the answer broke off: reading from", code_);
    }
    return response;
  }

 private:
  // Starts an operation, whose handler sets code_, and runs it to its end. Checks now and then whether the client was
  // told to stop, or the call's time is over, and returns false if so.
  template <typename Start>
  bool run(Start start) {
    bool done = false;
    start([&](const beast::error_code& result, auto&&...) {
      code_ = result;
      done = true;
    });
    while (!done) {
      context_.restart();
      context_.run_for(kLookEvery);
      if (!done && (client_.stopped() || late())) {
        stream_.close();
        context_.restart();
        context_.run();  // the cancelled operation ends
        return false;
      }
    }
    // This check also works when the server always answers faster than the one above runs.
    if (client_.stopped()) stream_.close();
    return !client_.stopped();
  }

  bool late() const { return longest_ && std::chrono::steady_clock::now() - began_ > *longest_; }
  Error ended_early() const {
    if (client_.stopped()) return Error(ErrorCode::kUnavailable, "stopped");
    char seconds[40];
    std::snprintf(seconds, sizeof seconds, "%g",
                  std::chrono::duration<double>(longest_.value_or(Limit::value_type())).count());
    return Error(ErrorCode::kDeadlineExceeded,
                 client_.url() + " does not answer within " + seconds + " s");
  }
  Error failed(const std::string& what, const beast::error_code& code) const {
    return Error(ErrorCode::kUnavailable, what + " " + client_.url() + ": " + code.message());
  }

  const HttpClient& client_;
  const Url& url_;
  const Limit longest_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  asio::io_context context_;
  beast::tcp_stream stream_;
  beast::error_code code_, write_code_;
};

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
  if (rest.find("://") != std::string_view::npos) return wrong("it does not begin with http://");
  Url url;
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    url.prefix = std::string(rest.substr(slash));
    rest = rest.substr(0, slash);
  }
  while (url.prefix.ends_with('/'))
    url.prefix.pop_back();
  // Other clients of the API are given a base address that ends in /v1, but the paths here begin with /v1 themselves.
  if (url.prefix.ends_with("/v1")) url.prefix.resize(url.prefix.size() - 3);
  if (rest.find('@') != std::string_view::npos)
    return wrong("it has a user's name; a key is given by --api-key");
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
      return wrong("its port is not a number from 0 to 65535");
    }
  }
  return url;
}

std::string with_port(const std::string& text, const Url& url) {
  return text.find(':' + url.port) == std::string::npos ? text + ", port " + url.port : text;
}

Result<HttpResponse> HttpClient::perform(const char* method, const std::string& path,
                                         const std::string& body, const OnBytes& on_bytes) {
  try {
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

    Call call(*this, url_, on_bytes == nullptr ? longest_ : std::nullopt);
    BULKHEAD_RETURN_IF_ERROR(call.connect());
    BULKHEAD_RETURN_IF_ERROR(call.write(request));
    return call.read(on_bytes);
  } catch (const std::exception& failure) {
    return Error(ErrorCode::kInternal, std::string("HTTP to ") + url_text_ + ": " + failure.what());
  }
}

}  // namespace bulkhead::cli
