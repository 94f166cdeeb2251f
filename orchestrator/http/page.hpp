// The web page: the files of orchestrator/http/page/, which the build embeds (cmake/EmbedPage.cmake).
// "/" is index.html, "/page/NAME" the others. Anyone who can connect may read them: they are the same in
// every installation. What the page shows and does it asks of the API, with the key where there is one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "orchestrator/http/exchange.hpp"

namespace bulkhead::orchestrator {

struct PageFile {
  std::string_view name;  // "chat.js"
  std::string_view type;  // for Content-Type
  std::string_view etag;  // with its quotes
  std::string_view text;
};

// Of the whole program's life. Any thread.
std::span<const PageFile> page_files();

// The file with the headers that it is sent with; 404 where there is none of that name.
HttpResponse page_response(std::string_view name);

}  // namespace bulkhead::orchestrator
