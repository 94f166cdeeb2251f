# cmake -DFOLDER=DIR -DFILES=a;b -DOUTPUT=FILE.cpp -P EmbedPage.cmake
# Writes the web page's files as one source: the table that orchestrator/http/page.hpp declares, a row for each file
# with its type and the ETag of its bytes. FILES has commas or semicolons between its names.
cmake_minimum_required(VERSION 3.25)

set(type_of_.html "text/html; charset=utf-8")
set(type_of_.css "text/css; charset=utf-8")
set(type_of_.js "text/javascript; charset=utf-8")
set(type_of_.svg "image/svg+xml")

string(REPLACE "," ";" FILES "${FILES}")
set(rows "")
foreach(name IN LISTS FILES)
  file(READ "${FOLDER}/${name}" text)
  file(SHA256 "${FOLDER}/${name}" hash)
  string(SUBSTRING "${hash}" 0 16 hash)
  cmake_path(GET name EXTENSION LAST_ONLY extension)
  if(NOT DEFINED type_of_${extension})
    message(FATAL_ERROR "the page's file ${name} has no known type (cmake/EmbedPage.cmake lists those there are)")
  endif()
  if(text MATCHES "\\)bulkhead\"")
    message(FATAL_ERROR "the page's file ${name} has the mark that ends a text of the generated source")
  endif()
  string(APPEND rows "    {\"${name}\", \"${type_of_${extension}}\", \"\\\"${hash}\\\"\", R\"bulkhead(${text})bulkhead\"},\n")
endforeach()

file(WRITE "${OUTPUT}" "// Made by cmake/EmbedPage.cmake.
#include \"orchestrator/http/page.hpp\"

namespace bulkhead::orchestrator {

std::span<const PageFile> page_files() {
  static constexpr PageFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace bulkhead::orchestrator
")
