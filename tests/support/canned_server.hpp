// A server that sends prepared answers, for tests of clients.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "config/base/unique_fd.hpp"

namespace bulkhead::test {

// A server with one prepared answer for each connection, in order. It remembers the requests.
class CannedServer {
 public:
  explicit CannedServer(std::vector<std::vector<std::string>> answers)
      : answers_(std::move(answers)) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~CannedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  const std::string& request(std::size_t i) const { return requests_.at(i); }

 private:
  void serve() {
    for (const std::vector<std::string>& pieces : answers_) {
      const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      std::string request;
      char chunk[4096];
      const auto whole = [&] {
        const std::size_t head = request.find("\r\n\r\n");
        if (head == std::string::npos) return false;
        const std::size_t length = request.find("Content-Length: ");
        const std::size_t body =
            length == std::string::npos ? 0 : std::stoul(request.substr(length + 16));
        return request.size() >= head + 4 + body;
      };
      while (!whole()) {
        const ssize_t got = ::read(client.get(), chunk, sizeof chunk);
        if (got <= 0) break;
        request.append(chunk, static_cast<std::size_t>(got));
      }
      requests_.push_back(request);
      for (const std::string& piece : pieces) {
        if (::send(client.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
        std::this_thread::sleep_for(
            std::chrono::milliseconds(5));  // so that the pieces arrive separately
      }
    }
  }

  std::vector<std::vector<std::string>> answers_;
  std::vector<std::string> requests_;
  UniqueFd listener_;
  int port_ = 0;
  std::thread thread_;
};

inline std::string whole_answer(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

}  // namespace bulkhead::test
