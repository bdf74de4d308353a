// Helpers that every command's output shares.
#include "sim/cli/commands.h"

#include "policies/error.h"

namespace equipoise {

Format parse_format(std::string_view text) {
  if (text == "table") return Format::table;
  if (text == "json") return Format::json;
  if (text == "csv") return Format::csv;
  throw UserError("--format: expected table, json or csv, found " + std::string(text));
}

}  // namespace equipoise
