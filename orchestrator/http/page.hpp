// The web page: the files of orchestrator/http/page/, which the build embeds (cmake/EmbedPage.cmake). "/" is
// index.html, "/page/NAME" are the others. Anyone who can connect may read them, because they are the same in every
// installation. The page gets everything that it shows from the API, and needs the key if there is one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

struct PageFile {
  std::string_view name;  // "chat.js"
  std::string_view type;  // for Content-Type
  std::string_view etag;  // including its quotes
  std::string_view text;
};

// Valid for the whole life of the program. Any thread.
std::span<const PageFile> page_files();

// Returns the file with its headers; 404 if there is none with that name.
HttpResponse page_response(std::string_view name);

}  // namespace bulkhead::orchestrator
