// Reads messages that a user types, or that a pipe delivers one per line. Only line_reader.cpp uses the library
// (libedit) that edits lines, keeps their history and takes pasted text as one piece.
#pragma once

#include <memory>
#include <string>

namespace bulkhead::cli {

class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted, kFailed };  // kFailed: errno says why

  virtual ~LineReader() = default;
  // Reads the next message, without its line end. At a terminal a message may have several lines, because text that
  // is pasted at once is one message. kInterrupted: Ctrl-C (`interrupted` of api.hpp is set), and the line is
  // dropped.
  virtual Outcome next(std::string& line) = 0;
};

// Makes a reader. If stdin and stdout are a terminal, the reader shows the prompt "> ", edits
// lines, and keeps the last 1,000 messages in $XDG_STATE_HOME/bulkhead/chat_history (default
// ~/.local/state; mode 0600; it keeps no history if it can't write that file). Otherwise it reads
// lines of any length without a prompt.
std::unique_ptr<LineReader> make_line_reader();

}  // namespace bulkhead::cli
