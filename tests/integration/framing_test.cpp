// There must be only one way to read where a request ends: if a proxy in front read it in another way, a client could
// add text to the next client's request. Each case is sent unchanged with a second request after it; if the first
// request is refused, the second one must never be answered.
#include <string>
#include <vector>

#include "tests/integration/serving.hpp"

namespace bulkhead::test {
namespace {

const std::string kHost = "Host: 127.0.0.1\r\n";
const std::string kBody = R"({"prompt":"x","max_tokens":1})";  // 29 bytes
const std::string kNext = "GET /v1/models HTTP/1.1\r\n" + kHost + "\r\n";

std::string post(const std::string& fields, const std::string& body) {
  return "POST /v1/completions HTTP/1.1\r\n" + kHost + fields + "\r\n" + body;
}
std::string get(const std::string& fields) {
  return "GET /v1/models HTTP/1.1\r\n" + kHost + fields + "\r\n";
}
const std::string kChunked = "Transfer-Encoding: chunked\r\n";
const std::string kLength = "Content-Length: 29\r\n";
const std::string kWhole = "1d\r\n" + kBody + "\r\n0\r\n\r\n";  // the body in one chunk
std::string chunks(const std::string& body) {
  return post(kChunked, body);
}

using Requests = std::vector<std::string>;

void add_refused_encodings(Requests& all) {
  // Transfer-Encoding that is not "chunked", once.
  for (const char* value : {"chunked, chunked",
                            "identity",
                            "gzip, chunked",
                            "chunked, gzip",
                            "chunked, identity",
                            "identity, chunked",
                            "xchunked",
                            "chunkedx",
                            "\"chunked\"",
                            "chunked;q=1",
                            "chunked,",
                            ",chunked",
                            "chunk",
                            "",
                            "x",
                            "\x0b"
                            "chunked",
                            "chunked\x0b",
                            "chunked\x01",
                            "'chunked'",
                            "chunked chunked",
                            "cow",
                            "trailers",
                            "deflate",
                            "chunked, ",
                            "\xef\xbb\xbf"
                            "chunked"})
    all.push_back(post("Transfer-Encoding: " + std::string(value) + "\r\n", kWhole));
  all.push_back(post(kChunked + kChunked, kWhole));
  all.push_back(post(kChunked + "Transfer-Encoding: identity\r\n", kWhole));
  all.push_back(post("Transfer-Encoding: identity\r\n" + kChunked, kWhole));
  all.push_back(post("Transfer-Encoding:\r\n chunked\r\n", kWhole));
  all.push_back("POST /v1/completions HTTP/1.0\r\n" + kHost + kChunked + "\r\n" + kWhole);
  // With a length as well, in either order.
  all.push_back(post(kChunked + kLength, kWhole));
  all.push_back(post(kLength + kChunked, kWhole));
  all.push_back(post("Content-Length: 0\r\n" + kChunked, kWhole));
  all.push_back(post(kChunked + "Content-Length: 0\r\n", kWhole));
  all.push_back(post("content-length: 4\r\ntransfer-encoding: chunked\r\n", kWhole));
}

void add_refused_fields(Requests& all) {
  // Content-Length that is not one plain number, once.
  for (const char* value :
       {"29, 29", "29,29", "+29", "-29", "0x1d", "29.0", "2 9", "29 bytes", "\"29\"", "", "1e2",
        "29;", "٢٩", "029abc", "99999999999999999999", "18446744073709551645", "29\x0b",
        "\x0b"
        "29"})
    all.push_back(post("Content-Length: " + std::string(value) + "\r\n", kBody));
  all.push_back(post(kLength + kLength, kBody));
  all.push_back(post(kLength + "Content-Length: 30\r\n", kBody));
  all.push_back(post("Content-Length: 0\r\n" + kLength, kBody));
  all.push_back(post("Content-Length:\r\n 29\r\n", kBody));
  // Bad names and colons.
  for (const char* line :
       {"Content-Length : 29", "Content-Length\t: 29", " Content-Length: 29",
        "\tContent-Length: 29", "Content Length: 29", "Content-Length", ": 29",
        "Content-Length\x01: 29", "Transfer-Encoding : chunked", "Transfer-Encoding\x0b: chunked",
        "X: 1\r\n Transfer-Encoding: chunked", "X: 1\r\n\tfolded", "(X): 1", "X@: 1", "\x80: 1"})
    all.push_back(post(std::string(line) + "\r\n", kBody));
}

void add_refused_lines(Requests& all) {
  // Ends of lines.
  all.push_back("GET /v1/models HTTP/1.1\n" + kHost + "\r\n");
  all.push_back("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\n\r\n");
  all.push_back("GET /v1/models HTTP/1.1\r\n" + kHost + "\n");
  all.push_back("GET /v1/models HTTP/1.1\n\n");
  all.push_back(get("X: a\rb\r\n"));
  all.push_back(get("X: a\nb\r\n"));
  all.push_back(get("X: a\nTransfer-Encoding: chunked\r\n"));
  all.push_back(get("X: a\rTransfer-Encoding: chunked\r\n"));
  all.push_back(get("X: a\r\r\n"));
  all.push_back(get("X: a" + std::string(1, '\0') + "b\r\n"));
  all.push_back(
      get("X: a\x7f"
          "b\r\n"));
  // Bad first lines.
  for (const char* line :
       {"GET  /v1/models HTTP/1.1", "GET /v1/models  HTTP/1.1", "GET /v1/models HTTP/1.1 ",
        " GET /v1/models HTTP/1.1", "GET\t/v1/models HTTP/1.1", "GET /v1/mo dels HTTP/1.1",
        "GET /v1/models", "GET /v1/models HTTP/1.2", "GET /v1/models HTTP/2.0",
        "GET /v1/models http/1.1", "GET /v1/models HTTP/1.1x", "GET /v1/models HTTP/01.1",
        "GET /v1/models HTTP/1.10", "G(T /v1/models HTTP/1.1", "GET /v1/models\x01 HTTP/1.1", "",
        "GET", "PRI * HTTP/2.0"})
    all.push_back(std::string(line) + "\r\n" + kHost + "\r\n");
}

void add_refused_chunks(Requests& all) {
  for (const char* body :
       {"zz\r\n", "\r\n", " 1d\r\n", "0x1d\r\n", "+1d\r\n", "-1d\r\n", "1d \r\n", "1 d\r\n", "1d\n",
        "1d\r", "ffffffffffffffff\r\n", "10000000000000001d\r\n", ";x\r\n", "1d;a\nb\r\n",
        "1d;a\rb\r\n", "1d;\x01\r\n"})
    all.push_back(chunks(std::string(body) + (std::string(body).back() == '\r' ? "x" : "") + kBody +
                         "\r\n0\r\n\r\n"));
  all.push_back(chunks("1c\r\n" + kBody + "\r\n0\r\n\r\n"));  // longer than it says
  all.push_back(chunks("1e\r\n" + kBody + "\r\n0\r\n\r\n"));  // shorter
  all.push_back(chunks("1d\r\n" + kBody + "\n0\r\n\r\n"));    // a bare LF after the data
  all.push_back(chunks("1d\r\n" + kBody + "0\r\n\r\n"));      // nothing after it
  all.push_back(chunks("1d\r\n" + kBody + "\r\n0\n\n"));      // bare LFs at the end
  all.push_back(chunks("1d\r\n" + kBody + "\r\n0\r\nX : 1\r\n\r\n"));
  all.push_back(chunks("1d\r\n" + kBody + "\r\n0\r\n X: 1\r\n\r\n"));
  all.push_back(chunks("1d\r\n" + kBody + "\r\n0\r\nX: a\nb\r\n\r\n"));
  all.push_back(chunks("1d;" + std::string(20000, 'e') + "\r\n" + kBody + "\r\n0\r\n\r\n"));
}

Requests refused() {
  Requests all;
  add_refused_encodings(all);
  add_refused_fields(all);
  add_refused_lines(all);
  add_refused_chunks(all);
  return all;
}

TEST(Framing, WhatCanBeReadInTwoWaysIsRefusedAndEndsItsConnection) {
  const Serving serving = serve();
  const std::vector<std::string> cases = refused();
  EXPECT_GE(cases.size(), 100U);
  for (const std::string& bytes : cases) {
    SCOPED_TRACE(bytes.substr(0, 200));
    HttpClient client(serving.port);
    client.send_raw(bytes + kNext);
    const HttpReply reply = client.receive();
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.body.find(".."), std::string::npos) << reply.body;
    EXPECT_EQ(client.receive_head().status, 0) << "the connection went on";
  }
  EXPECT_EQ(serving.get("/health").status, 200);
  EXPECT_EQ(serving.worker()["outstanding_requests"], 0);
  EXPECT_GE(serving.metric("bulkhead_http_bad_framing_total"), 100);
}

TEST(Framing, WhatIsWellFormedIsTakenAndTheNextRequestAfterIt) {
  const Serving serving = serve();
  for (const std::string& bytes :
       {post(kLength, kBody), chunks(kWhole), post("Transfer-Encoding: ChUnKeD\r\n", kWhole),
        post("Transfer-Encoding:  chunked \t\r\n", kWhole), post("Content-Length:29\r\n", kBody),
        post("Content-Length: 0029\r\n", kBody), chunks("001D\r\n" + kBody + "\r\n000\r\n\r\n"),
        chunks("1d;name=value;x=\"y\"\r\n" + kBody + "\r\n0;last\r\n\r\n"),
        chunks("1d\r\n" + kBody + "\r\n0\r\nX-Checksum: 1\r\nContent-Length: 5\r\n\r\n"),
        chunks("1\r\n{\r\n1c\r\n" + kBody.substr(1) + "\r\n0\r\n\r\n"),
        post("X:\r\nx-empty: \t\r\n" + kLength, kBody), get("X: caf\xc3\xa9\r\n")}) {
    SCOPED_TRACE(bytes);
    HttpClient client(serving.port);
    client.send_raw(bytes + kNext);
    const HttpReply reply = client.receive();
    EXPECT_EQ(reply.status, 200) << reply.body;
    const HttpReply next = client.receive();
    EXPECT_EQ(next.status, 200);
    EXPECT_EQ(json::parse(next.body)["object"], "list");
  }
  // The result does not depend on how the request is cut into packets.
  HttpClient slow(serving.port);
  for (const char c : chunks(kWhole) + kNext)
    slow.send_raw(std::string(1, c));
  EXPECT_EQ(slow.receive().status, 200);
  EXPECT_EQ(json::parse(slow.receive().body)["object"], "list");
}

}  // namespace
}  // namespace bulkhead::test
