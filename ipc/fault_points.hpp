// The steps of the channel at which a process may die. tests/unit/ipc/death_test.cpp goes through this list: for each
// transport and each side that a row names, the test kills a process at that point. The other side must notice, must
// lose nothing that was sent, and must leak nothing. To add a step, add a row here and call reach() at the step; the
// test fails for a row that is never reached.
//
// config/base/fault_points.hpp decides which point kills, and on which of the times that the process reaches it. A
// release build has none of this.
#pragma once

#include <cstddef>

#include "config/base/fault_points.hpp"

namespace bulkhead::ipc {

// Which transports and which ends pass a point.
enum PointScope : unsigned {
  kOverMemfd = 1,
  kOverPosix = 2,
  kOverShm = kOverMemfd | kOverPosix,
  kOverStdio = 4,
  kOverAll = kOverShm | kOverStdio,
  kInDaemon = 8,
  kInWorker = 16,
  kInBoth = kInDaemon | kInWorker,
};

// clang-format off
#define BULKHEAD_IPC_POINTS(POINT)                                                                  \
  /* making and opening the channel */                                                              \
  POINT(kSocketsMade,       "ipc.sockets_made",       kOverAll   | kInDaemon)                       \
  POINT(kRegionNamed,       "ipc.region_named",       kOverPosix | kInDaemon)                       \
  POINT(kRegionMade,        "ipc.region_made",        kOverShm   | kInDaemon)                       \
  POINT(kRegionSized,       "ipc.region_sized",       kOverShm   | kInDaemon)                       \
  POINT(kRegionSealed,      "ipc.region_sealed",      kOverMemfd | kInDaemon)                       \
  POINT(kRegionMapped,      "ipc.region_mapped",      kOverShm   | kInBoth)                         \
  POINT(kPairMade,          "ipc.pair_made",          kOverAll   | kInDaemon)                       \
  POINT(kOpen,              "ipc.open",               kOverAll   | kInWorker)                       \
  POINT(kStreamsMoved,      "ipc.streams_moved",      kOverStdio | kInWorker)                       \
  POINT(kOpened,            "ipc.opened",             kOverAll   | kInWorker)                       \
  /* sending; the first record is the hello */                                                      \
  POINT(kReserve,           "ipc.reserve",            kOverAll   | kInBoth)                         \
  POINT(kReadTail,          "ipc.read_tail",          kOverShm   | kInBoth)                         \
  POINT(kTailRead,          "ipc.tail_read",          kOverShm   | kInBoth)                         \
  POINT(kReserved,          "ipc.reserved",           kOverAll   | kInBoth)                         \
  POINT(kCommit,            "ipc.commit",             kOverAll   | kInBoth)                         \
  POINT(kPayloadCopied,     "ipc.payload_copied",     kOverAll   | kInBoth)                         \
  POINT(kPaddingWritten,    "ipc.padding_written",    kOverShm   | kInBoth)                         \
  POINT(kPublish,           "ipc.publish",            kOverShm   | kInBoth)                         \
  POINT(kPublished,         "ipc.published",          kOverShm   | kInBoth)                         \
  POINT(kPieceSent,         "ipc.piece_sent",         kOverAll   | kInBoth)                         \
  POINT(kStreamSend,        "ipc.stream_send",        kOverStdio | kInBoth)                         \
  POINT(kHalfHeaderSent,    "ipc.half_header_sent",   kOverStdio | kInBoth)                         \
  POINT(kHalfPayloadSent,   "ipc.half_payload_sent",  kOverStdio | kInBoth)                         \
  POINT(kStreamSent,        "ipc.stream_sent",        kOverStdio | kInBoth)                         \
  POINT(kStreamFull,        "ipc.stream_full",        kOverStdio | kInBoth)                         \
  POINT(kSendDescriptors,   "ipc.send_descriptors",   kOverAll   | kInBoth)                         \
  POINT(kDescriptorsSent,   "ipc.descriptors_sent",   kOverAll   | kInBoth)                         \
  /* receiving */                                                                                   \
  POINT(kReadHead,          "ipc.read_head",          kOverShm   | kInBoth)                         \
  POINT(kHeadRead,          "ipc.head_read",          kOverShm   | kInBoth)                         \
  POINT(kPaddingSkipped,    "ipc.padding_skipped",    kOverShm   | kInBoth)                         \
  POINT(kFrameRead,         "ipc.frame_read",         kOverShm   | kInBoth)                         \
  POINT(kStreamRead,        "ipc.stream_read",        kOverStdio | kInBoth)                         \
  POINT(kCopied,            "ipc.copied",             kOverShm   | kInDaemon)                       \
  POINT(kPieceReceived,     "ipc.piece_received",     kOverAll   | kInBoth)                         \
  POINT(kReceived,          "ipc.received",           kOverAll   | kInBoth)                         \
  POINT(kGiveBack,          "ipc.give_back",          kOverShm   | kInBoth)                         \
  POINT(kGivenBack,         "ipc.given_back",         kOverShm   | kInBoth)                         \
  POINT(kReleased,          "ipc.released",           kOverAll   | kInBoth)                         \
  POINT(kDescriptorsTaken,  "ipc.descriptors_taken",  kOverAll   | kInBoth)                         \
  /* waking the other end */                                                                        \
  POINT(kSleepWordRead,     "ipc.sleep_word_read",    kOverShm   | kInBoth)                         \
  POINT(kRing,              "ipc.ring",               kOverShm   | kInBoth)                         \
  POINT(kRung,              "ipc.rung",               kOverShm   | kInBoth)                         \
  /* sleeping */                                                                                    \
  POINT(kAnnounceSleep,     "ipc.announce_sleep",     kOverShm   | kInBoth)                         \
  POINT(kSleepAnnounced,    "ipc.sleep_announced",    kOverShm   | kInBoth)                         \
  POINT(kLastLook,          "ipc.last_look",          kOverShm   | kInBoth)                         \
  POINT(kAnnounceWait,      "ipc.announce_wait",      kOverShm   | kInBoth)                         \
  POINT(kWaitAnnounced,     "ipc.wait_announced",     kOverShm   | kInBoth)                         \
  POINT(kLastLookForRoom,   "ipc.last_look_for_room", kOverShm   | kInBoth)                         \
  POINT(kAsleep,            "ipc.asleep",             kOverAll   | kInBoth)                         \
  POINT(kWoken,             "ipc.woken",              kOverAll   | kInBoth)                         \
  POINT(kWithdrawn,         "ipc.withdrawn",          kOverAll   | kInBoth)                         \
  POINT(kPacketReceived,    "ipc.packet_received",    kOverAll   | kInBoth)                         \
  POINT(kAwake,             "ipc.awake",              kOverAll   | kInBoth)
// clang-format on

enum class Point : unsigned {
#define BULKHEAD_POINT(id, name, scope) id,
  BULKHEAD_IPC_POINTS(BULKHEAD_POINT)
#undef BULKHEAD_POINT
};

struct PointInfo {
  const char* name;
  unsigned scope;  // of PointScope
};
inline constexpr PointInfo kPoints[] = {
#define BULKHEAD_POINT(id, name, scope) {name, scope},
    BULKHEAD_IPC_POINTS(BULKHEAD_POINT)
#undef BULKHEAD_POINT
};

constexpr const char* name_of(Point point) {
  return kPoints[static_cast<std::size_t>(point)].name;
}

// Reports that the process has reached `point`. A test may have planned its death there.
inline void reach(Point point) {
  fault::reach(name_of(point));
}
// Reports that the process has reached `point`, a step that can fail (kReserve). Returns true if the plan says so.
inline bool fails(Point point) {
  return fault::fails(name_of(point));
}
// Reports that the process has reached `point`, a step whose result can be damaged (kCommit). Returns true if the plan
// says so.
inline bool corrupts(Point point) {
  return fault::corrupts(name_of(point));
}

}  // namespace bulkhead::ipc
