// A worker that lies, with the ring's words, records, the stream or the socket. The daemon's end must return kCorrupt
// (or say that the worker is gone), and nothing else may happen.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <random>

#include "ipc/peer_socket.hpp"
#include "ipc/record_channel.hpp"
#include "ipc/region.hpp"
#include "tests/support/descriptor_packet.hpp"
#include "tests/support/lingering_socket.hpp"
#include "tests/unit/ipc/harness.hpp"
#include "tests/unit/ipc/samples.hpp"

namespace bulkhead::ipc {
namespace {

using namespace test;

// The means of a hostile worker: the region as plain memory, the socket, the stream.
struct Hostile {
  explicit Hostile(const Kind& kind) : settings(settings_for(kind, 16)), pair(make_pair(settings)) {
    if (pair.worker_region.valid()) {
      auto opened = Region::open(pair.worker_region.get());
      if (opened.ok()) region.emplace(std::move(*opened));
    }
  }
  RingControl& up() { return region->header().to_daemon; }
  RingControl& down() { return region->header().to_worker; }
  void header(std::uint64_t at, std::uint32_t length, std::uint32_t kind) {
    const std::uint32_t words[2] = {length, kind};
    std::memcpy(region->to_daemon_data() + at, words, sizeof words);
  }
  void stream(const void* bytes, std::size_t size) {
    EXPECT_EQ(::send(pair.worker_stdout.get(), bytes, size, MSG_NOSIGNAL),
              static_cast<ssize_t>(size));
  }
  void stream_header(std::uint32_t length, std::uint32_t kind) {
    const std::uint32_t words[2] = {length, kind};
    stream(words, sizeof words);
  }
  void packet(const void* bytes, std::size_t size, std::size_t descriptors = 0) {
    std::vector<int> fds(descriptors, pair.worker_socket.get());
    (void)bulkhead::test::send_packet(pair.worker_socket.get(), bytes, size, fds);
  }

  config::IpcSettings settings;
  ChannelPair pair;
  std::optional<Region> region;
};

struct Lie {
  const char* name;
  Kind kind;
  void (*tell)(Hostile&);
  const char* reason;  // part of the daemon's message
};
void PrintTo(const Lie& lie, std::ostream* out) {
  *out << lie.name;
}

class LyingWorker : public testing::TestWithParam<Lie> {};

TEST_P(LyingWorker, EndsWithItsReason) {
  const std::size_t before = open_descriptors();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 512) {
    GTEST_SKIP() << "a worker may fill 256 descriptors, and here are only " << limit.rlim_cur;
  }
  {
    Hostile hostile(GetParam().kind);
    Channel& daemon = *hostile.pair.daemon;
    // The daemon sleeps when it happens, as its loop does.
    ASSERT_TRUE(*daemon.prepare_sleep());
    GetParam().tell(hostile);
    daemon.finish_sleep();
    std::optional<Error> error;
    for (int i = 0; i < 20000 && !error; ++i) {
      // This daemon also sends, so it reads the peer's tail.
      const auto place = daemon.try_reserve(1000);
      if (!place.ok()) {
        error = place.error();
        break;
      }
      if (!place->empty()) (void)daemon.commit(1000);
      const auto record = daemon.try_receive();
      if (!record.ok()) error = record.error();
      if (record.ok() && !record->empty()) daemon.release();
      const auto asleep = daemon.prepare_sleep();
      if (asleep.ok() && *asleep) daemon.finish_sleep();
    }
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt) << error->message();
    EXPECT_NE(error->message().find(GetParam().reason), std::string::npos) << error->message();
    EXPECT_EQ(daemon.try_receive().error().code(), ErrorCode::kCorrupt) << "it lasts";
    EXPECT_EQ(daemon.try_reserve(8).error().code(), ErrorCode::kCorrupt);
  }
  EXPECT_EQ(descriptors_settle(before), before) << "descriptors it sent are closed";
}

constexpr std::uint32_t kWhole = 1, kMore = 2, kLast = 3, kPadding = 4;

INSTANTIATE_TEST_SUITE_P(
    Ring, LyingWorker,
    testing::Values(
        Lie{"HeadUnaligned", kMemfd, [](Hostile& h) { h.up().head = 9; }, "multiple of 8"},
        Lie{"HeadAhead", kMemfd, [](Hostile& h) { h.up().head = 1 << 20; }, "further"},
        Lie{"EmptyFrame", kMemfd, [](Hostile& h) { h.up().head = 8; }, "frame is empty"},
        Lie{"LengthBeyondHead", kMemfd,
            [](Hostile& h) {
              h.header(0, 4000, kWhole);
              h.up().head = 1000;
            },
            "longer than what was published"},
        Lie{"LengthHuge", kMemfd,
            [](Hostile& h) {
              h.header(0, 0xFFFFFFF0, kWhole);
              h.up().head = 16384;
            },
            "longer than"},
        Lie{"UnknownKind", kMemfd,
            [](Hostile& h) {
              h.header(0, 8, 77);
              h.up().head = 16;
            },
            "no known kind"},
        Lie{"PaddingOnly", kMemfd,
            [](Hostile& h) {
              h.header(0, 16376, kPadding);
              h.up().head = 16384;
            },
            "padding"},
        Lie{"LastPieceFirst", kMemfd,
            [](Hostile& h) {
              h.header(0, 8, kLast);
              h.up().head = 16;
            },
            "last piece comes first"},
        Lie{"WholeBetweenPieces", kMemfd,
            [](Hostile& h) {
              h.header(0, 8, kMore);
              h.header(16, 8, kWhole);
              h.up().head = 32;
            },
            "between the pieces"},
        Lie{"TailAhead", kMemfd, [](Hostile& h) { h.down().tail = 1 << 20; }, "further"},
        Lie{"TailUnaligned", kPosix, [](Hostile& h) { h.down().tail = 3; }, "multiple of 8"},
        Lie{"Doorbells", kMemfd,
            [](Hostile& h) {
              for (int i = 0; i < 100; ++i)
                h.packet("x", 1);
            },
            "it rang"},
        Lie{"LongPacket", kMemfd,
            [](Hostile& h) {
              char large[3000] = {};
              h.packet(large, sizeof large);
            },
            "too long"},
        Lie{"TagWithoutDescriptors", kMemfd, [](Hostile& h) { h.packet("12345678", 8); },
            "8 bytes and 0 descriptors"},
        Lie{"DoorbellWithDescriptors", kMemfd, [](Hostile& h) { h.packet("x", 1, 3); },
            "1 bytes and 3 descriptors"},
        Lie{"TooManyDescriptors", kMemfd, [](Hostile& h) { h.packet("12345678", 8, 100); },
            "carries 100 descriptors"},
        Lie{"DescriptorsNobodyTakes", kMemfd,
            [](Hostile& h) {
              for (int i = 0; i < 10; ++i)
                h.packet("12345678", 8, 60);
            },
            "wait to be taken"}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Stream, LyingWorker,
    testing::Values(
        Lie{"EmptyFrame", kStdio, [](Hostile& h) { h.stream_header(0, kWhole); }, "empty"},
        Lie{"LongFrame", kStdio, [](Hostile& h) { h.stream_header(9000, kWhole); }, "longer than"},
        Lie{"LengthOverflows", kStdio, [](Hostile& h) { h.stream_header(0xFFFFFFFF, kMore); },
            "longer than"},
        Lie{"Padding", kStdio, [](Hostile& h) { h.stream_header(8, kPadding); }, "no known kind"},
        Lie{"Text", kStdio, [](Hostile& h) { h.stream("Segmentation fault\n", 19); }, "stream"},
        Lie{"LastPieceFirst", kStdio,
            [](Hostile& h) {
              h.stream_header(8, kLast);
              h.stream("12345678", 8);
            },
            "last piece comes first"},
        Lie{"Doorbell", kStdio, [](Hostile& h) { h.packet("x", 1); }, "it rang"}),
    [](const auto& test) { return test.param.name; });

TEST(HostileWorker, EndlessPiecesAreCutOff) {
  for (const Kind& kind : {kMemfd, kStdio}) {
    const config::IpcSettings settings = settings_for(kind, 1024);
    ChannelPair pair = make_pair(settings);
    Child child(pair, [&]() -> int {
      const std::vector<std::byte> piece(100000);
      if (kind.transport == config::Transport::kStdio) {
        const std::uint32_t words[2] = {static_cast<std::uint32_t>(piece.size()), kMore};
        while (::send(pair.worker_stdout.get(), words, 8, MSG_NOSIGNAL) > 0 &&
               ::send(pair.worker_stdout.get(), piece.data(), piece.size(), MSG_NOSIGNAL) > 0) {
        }
        return 0;
      }
      auto region = Region::open(pair.worker_region.get());
      if (!region.ok()) return 1;
      RingProducer producer(region->header().to_daemon, region->to_daemon_data(),
                            region->ring_bytes());
      for (;;) {
        if (!producer.put(piece, FrameKind::kMore)) ::usleep(100);
      }
    });
    std::optional<Error> error;
    while (!error) {
      const auto record = pair.daemon->try_receive();
      if (!record.ok()) error = record.error();
    }
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt) << error->message();
    EXPECT_NE(error->message().find(std::to_string(kMaxRecordToDaemon)), std::string::npos);
  }
}

TEST(HostileWorker, EmptyPacketIsTakenForDeath) {
  Hostile hostile(kMemfd);
  hostile.packet("", 0);
  EXPECT_EQ(receive_asleep(*hostile.pair.daemon).error().code(), ErrorCode::kUnavailable);
}

TEST(HostileWorker, FullSocketNeverBlocksTheDaemon) {
  // A worker that always claims to sleep and never reads its doorbells, so that the daemon rings for each record.
  Hostile hostile(kMemfd);
  Channel& daemon = *hostile.pair.daemon;
  std::uint64_t word = 1;
  for (int i = 0; i < 5000; ++i) {
    hostile.down().consumer_sleep = word += 2;
    hostile.down().tail = hostile.down().head.load();
    const auto place = daemon.try_reserve(8);
    ASSERT_TRUE(place.ok()) << place.error().message();
    ASSERT_FALSE(place->empty());
    ASSERT_TRUE(daemon.commit(8).ok());
  }
  EXPECT_EQ(daemon.stats().doorbells_sent, 5000U);
}

// A second process writes to everything that it can reach while the daemon serves the channel.
void scribble(ChannelPair& pair, unsigned seed) {
  std::mt19937_64 random(seed);
  std::optional<Region> region;
  if (pair.worker_region.valid()) {
    auto opened = Region::open(pair.worker_region.get());
    if (!opened.ok()) ::_exit(1);
    region.emplace(std::move(*opened));
  }
  std::vector<std::uint64_t> record(512);
  const auto samples = samples_from_worker();
  for (int i = 0; i < 3000; ++i) {
    const auto& sample = samples[random() % samples.size()];
    const auto size = encode(sample, std::as_writable_bytes(std::span(record)));
    if (!size.ok()) continue;
    auto* bytes = reinterpret_cast<unsigned char*>(record.data());
    if (random() % 2 == 0) bytes[random() % *size] = static_cast<unsigned char>(random());
    if (region) {
      RingControl& up = region->header().to_daemon;
      RingControl& down = region->header().to_worker;
      // It mostly writes a proper frame, and changes it while the daemon reads it.
      const std::uint64_t at = up.head.load() & (region->ring_bytes() - 1);
      if (at + 8 + *size < region->ring_bytes()) {
        const std::uint32_t words[2] = {static_cast<std::uint32_t>(*size), kWhole};
        std::memcpy(region->to_daemon_data() + at, words, 8);
        std::memcpy(region->to_daemon_data() + at + 8, bytes, *size);
      }
      up.head.fetch_add(frame_bytes(*size));
      auto* data = reinterpret_cast<unsigned char*>(region->to_daemon_data());
      for (int j = 0; j < 20; ++j)
        data[(at + random() % 512) % region->ring_bytes()] ^= 1;
      if (random() % 64 == 0) down.tail.store(down.head.load());
      if (random() % 256 == 0) up.tail.store(random());
      if (random() % 1024 == 0) up.head.store(random());
      if (random() % 1024 == 0) down.tail.store(random());
      down.consumer_sleep.store(random());
      up.producer_wait.store(random());
    } else {
      const std::uint32_t words[2] = {
          static_cast<std::uint32_t>(random() % 256 == 0 ? random() : *size), kWhole};
      if (::send(pair.worker_stdout.get(), words, 8, MSG_NOSIGNAL) < 0 ||
          ::send(pair.worker_stdout.get(), bytes, *size, MSG_NOSIGNAL) < 0) {
        return;
      }
    }
    if (random() % 8 == 0) {
      char packet[16] = {};
      (void)::send(pair.worker_socket.get(), packet, random() % 64 == 0 ? random() % 16 + 1 : 1,
                   MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (random() % 32 == 0) ::usleep(20);
  }
}

class Scribbler : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Transport, Scribbler, testing::Values(kMemfd, kPosix, kStdio),
                         [](const auto& test) { return test.param.name; });

TEST_P(Scribbler, OnlyEndsItself) {
  const std::size_t before = open_descriptors();
  std::size_t corrupt = 0, gone = 0, records = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    ChannelPair pair = make_pair(settings_for(GetParam(), 16));
    Child child(pair, [&]() -> int {
      scribble(pair, seed);
      return 0;
    });
    Channel& daemon = *pair.daemon;
    std::optional<Error> error;
    while (!error) {
      const auto ready = wait_readable(daemon, microseconds(0), milliseconds(100));
      if (!ready.ok()) {
        error = ready.error();
        break;
      }
      if (*ready) {
        const auto record = daemon.try_receive();
        ++records;
        const auto visited = visit_tokens(*record, [](const auto&) {});
        const auto message = decode_from_worker(*record);
        if (!visited.ok() || !message.ok()) error = Error(ErrorCode::kCorrupt, "message");
        // A real daemon stops here; this one sometimes continues.
        if (error && seed % 2 == 0) error.reset();
        daemon.release();
      }
      const auto sent = try_send(daemon, ToWorker(Ping{1}));
      if (!sent.ok()) error = sent.error();
    }
    ASSERT_TRUE(error->code() == ErrorCode::kCorrupt || error->code() == ErrorCode::kUnavailable)
        << error->message();
    (error->code() == ErrorCode::kCorrupt ? corrupt : gone)++;
  }
  EXPECT_GT(corrupt, 0U);
  EXPECT_GT(records, 0U);
  EXPECT_EQ(open_descriptors(), before);
}

// A socket whose last close waits for ten minutes, and its way to the daemon.
class Lingering {
 public:
  bool made() const { return socket_.has_value(); }
  // The packet has the last reference afterwards.
  void send(int socket, std::size_t payload, bool nested) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    UniqueFd inner(ends[0]), outer(ends[1]);
    if (nested) {
      ASSERT_TRUE(packet(inner.get(), 8, socket_->sender.get()));
    }
    ASSERT_TRUE(packet(socket, payload, nested ? outer.get() : socket_->sender.get()));
    socket_->sender.reset();
  }

 private:
  static bool packet(int socket, std::size_t payload, int fd) {
    const char bytes[16] = "12345678";
    return bulkhead::test::send_packet(socket, bytes, payload, std::span(&fd, 1)) ==
           static_cast<ssize_t>(payload);
  }

  std::optional<bulkhead::test::LingeringSocket> socket_ = bulkhead::test::make_lingering(600);
};

// This happened before: the daemon's thread stood still for as long as the worker had set.
TEST(HostileWorker, SocketsThatLingerDoNotHoldTheDaemonUp) {
  enum class Way { kTaken, kNotTaken, kNotRead, kRefused, kOnTheStream };
  const auto begun = std::chrono::steady_clock::now();
  for (const Way way :
       {Way::kTaken, Way::kNotTaken, Way::kNotRead, Way::kRefused, Way::kOnTheStream}) {
    for (const bool nested : {false, true}) {
      Lingering socket;
      if (!socket.made()) GTEST_SKIP() << "no TCP over the loopback here";
      Hostile hostile(way == Way::kOnTheStream ? kStdio : kMemfd);
      Channel& daemon = *hostile.pair.daemon;
      const int through =
          (way == Way::kOnTheStream ? hostile.pair.worker_stdout : hostile.pair.worker_socket)
              .get();
      socket.send(through, way == Way::kRefused ? 3 : 8, nested);
      if (way == Way::kNotRead) continue;
      const bool asleep = *daemon.prepare_sleep();
      if (asleep) daemon.finish_sleep();
      if (way == Way::kTaken) {
        EXPECT_TRUE(daemon.take_descriptors().has_value());
      }
      if (way == Way::kRefused || way == Way::kOnTheStream) {
        const auto record = daemon.try_receive();
        ASSERT_FALSE(record.ok());
        EXPECT_EQ(record.error().code(), ErrorCode::kCorrupt);
        EXPECT_NE(record.error().message().find("descriptors"), std::string::npos);
      }
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(300))
      << "half of what one of them lingers";
}

}  // namespace
}  // namespace bulkhead::ipc
