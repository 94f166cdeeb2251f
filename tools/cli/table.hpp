// Renders tables for a terminal: each column is as wide as its widest cell, with two blanks between
// columns.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace bulkhead::cli {

// `rows` has the titles first, and each row is as long as the first. The cells must not contain
// control characters.
std::string table(const std::vector<std::vector<std::string>>& rows);

// Makes a cell of an answer's text: escapes control characters and turns tabs into blanks. Returns
// "-" for an empty text.
std::string cell(const std::string& text);

// Renders a member of an answer's object as a cell: a text, a list of texts with commas, or any other value as JSON.
// Returns "-" if the member is absent or `object` is no object.
std::string cell_of(const nlohmann::json& object, const char* key);

// Renders a worker's device as a cell: the device's name and, if the settings choose a device, their word for it, as
// in "NVIDIA H200 (1)".
std::string device_cell(const nlohmann::json& worker);

// Escapes a text for use as one part of a URL's path.
std::string url_encoded(const std::string& text);

}  // namespace bulkhead::cli
