// server.models_folder: its GGUF files as models, each of which is loaded at its first use.
//
// Files of subfolders count, down to kMostDepth; of a split model its first part. A model is named as its
// file is, without what tells the parts apart; where another has that name already, as its path in the
// folder. What else is in the folder (projectors named mmproj*, hidden files) is left out. Looking may take
// for ever where the folder is on a network mount that hangs.
#pragma once

#include <set>
#include <string>

#include "config/base/error.hpp"
#include "config/settings.hpp"

namespace bulkhead::orchestrator {

// Adds the folder's models to `settings.models`, by name and by path in normal form, unless a file is
// there already. kNotFound: the folder can't be read.
Status add_models_of_folder(config::Settings& settings);

// The path of the file that `name` means (its path, or its path in the folder), in normal form. Does not
// look whether it is there. kNotFound: it can be no model of the folder, or there is no folder.
Result<std::string> file_in_folder(const std::string& folder, const std::string& name);

// A file of the folder, its path in normal form, as a model. `taken`: names of other models.
config::ModelSettings model_of_file(const std::string& folder, const std::string& file,
                                    const std::set<std::string>& taken);

}  // namespace bulkhead::orchestrator
