// Deliberately wrong: the include check must name this file.
#include "ipc/channel.hpp"
