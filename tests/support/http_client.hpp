// A small blocking HTTP client on a plain socket, so that tests can send any bytes, stop reading, or hang up at any
// time.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/base/unique_fd.hpp"

namespace bulkhead::test {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before a status line
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // the body ended as its headers said
};

class HttpClient {
 public:
  static constexpr int kPatienceMs = 120000;  // a loaded machine may be slow

  explicit HttpClient(std::uint16_t port, int receive_buffer = 0) : port_(port) {
    fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_buffer > 0)
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      fd_.reset();
  }

  bool connected() const { return fd_.valid(); }
  void hang_up() { fd_.reset(); }
  int fd() const { return fd_.get(); }

  bool send_raw(std::string_view bytes) {
    while (!bytes.empty()) {
      ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  bool send(const std::string& method, const std::string& path, const std::string& body = "",
            const std::vector<std::string>& fields = {}) {
    std::string request = method + " " + path + " HTTP/1.1\r\n";
    bool has_host = std::any_of(fields.begin(), fields.end(),
                                [](const std::string& f) { return f.starts_with("Host:"); });
    if (!has_host) request += "Host: 127.0.0.1:" + std::to_string(port_) + "\r\n";
    for (const std::string& field : fields)
      request += field + "\r\n";
    if (!body.empty() || method == "POST")
      request += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    return send_raw(request + "\r\n" + body);
  }

  HttpReply receive(bool head_only = false) {
    HttpReply reply = receive_head();
    while (reply.status == 100)
      reply = receive_head();
    if (reply.status == 0) return reply;
    if (head_only || reply.status == 204 || reply.status == 304) {
      reply.complete = true;
      return reply;
    }
    if (auto length = reply.headers.find("content-length"); length != reply.headers.end()) {
      std::size_t wanted = std::strtoul(length->second.c_str(), nullptr, 10);
      while (buffer_.size() < wanted && fill()) {
      }
      reply.complete = buffer_.size() >= wanted;
      reply.body = take(std::min(wanted, buffer_.size()));
      return reply;
    }
    if (reply.headers["transfer-encoding"] == "chunked") {
      while (auto chunk = receive_chunk()) {
        if (chunk->empty()) {
          reply.complete = true;
          return reply;
        }
        reply.body += *chunk;
      }
      return reply;
    }
    while (fill()) {
    }
    reply.body = take(buffer_.size());
    reply.complete = true;
    return reply;
  }

  HttpReply receive_head() {
    HttpReply reply;
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!fill()) return reply;
    }
    std::string head = take(end + 4);
    if (head.starts_with("HTTP/1.1 ")) reply.status = std::atoi(head.c_str() + 9);
    std::size_t line = head.find("\r\n") + 2;
    while (line < head.size() - 2) {
      std::size_t stop = head.find("\r\n", line);
      std::string field = head.substr(line, stop - line);
      std::size_t colon = field.find(':');
      std::string name = field.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      reply.headers[name] = field.substr(std::min(field.size(), colon + 2));
      line = stop + 2;
    }
    return reply;
  }

  // Returns the next chunk of a chunked body: empty at its end, nothing if the connection ended first.
  std::optional<std::string> receive_chunk() {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!fill()) return std::nullopt;
    }
    std::size_t size = std::strtoul(take(end + 2).c_str(), nullptr, 16);
    while (buffer_.size() < size + 2) {
      if (!fill()) return std::nullopt;
    }
    std::string chunk = take(size + 2);
    chunk.resize(size);
    return chunk;
  }

  // Returns whether the server closed the connection within the patience.
  bool closed_by_server() {
    while (fill()) {
    }
    return ended_;
  }

  HttpReply request(const std::string& method, const std::string& path,
                    const std::string& body = "", const std::vector<std::string>& fields = {}) {
    if (!connected() || !send(method, path, body, fields)) return {};
    return receive(method == "HEAD");
  }

 private:
  std::string take(std::size_t bytes) {
    std::string taken = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
    return taken;
  }

  bool fill() {
    pollfd item{fd_.get(), POLLIN, 0};
    if (::poll(&item, 1, kPatienceMs) <= 0) return false;
    char bytes[16384];
    ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, 0);
    if (got <= 0) {
      ended_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<std::size_t>(got));
    return true;
  }

  std::uint16_t port_;
  UniqueFd fd_;
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace bulkhead::test
