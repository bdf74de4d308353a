// The grammar of `shard`.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "sim/cli/grammar_parts.h"
#include "sim/cli/plan_commands.h"
#include "sim/limits/memory_limit.h"

namespace equipoise {

void add_shard(CLI::App& app) {
  struct Arguments {
    ShardCommandOptions options;
    std::string lengths, tile, block, bucket_size, format = "table";
  };
  CLI::App* command = app.add_subcommand("shard", "Where the queries of one micro-batch sit on its CP ranks");
  command->footer(
      "Example: equipoise shard --lengths 5000,3000 --cp 4 --policy adaptive --model llama2-7b --profile "
      "h100-sxm");
  const auto a = std::make_shared<Arguments>();
  ShardCommandOptions& options = a->options;
  command->add_option("--lengths", a->lengths, "Documents of the micro-batch, in order: 5000,3000 or 4K,128K")
      ->required();
  command->add_option("--cp", options.ranks, "Context-parallel ranks")->required();
  command->add_option("--policy", options.policy, "See `equipoise list policies`")->capture_default_str();
  command
      ->add_option("--remainder", options.remainder,
                   "per-document, where 2 x CP does not divide: slots, tail or pad")
      ->capture_default_str();
  command->add_option("--pad", options.pad, "per-sequence, where 2 x CP does not divide: error or tail")
      ->capture_default_str();
  command->add_option("--tile", a->tile, "Query tile that costs are rounded up to without a profile (128)");
  command->add_option("--block", a->block, "heap-dispatch, snake: tokens of a query block (128)");
  command->add_option("--bucket-size", a->bucket_size, "dacp: tokens that a CP rank holds");
  command->add_option("--cost", options.cost, "dacp: quadratic, flops (default; needs --model) or profiled");
  command->add_option("--model", options.model, "Built-in name, or a Hugging Face config.json");
  command->add_option("--profile", options.profile, "Predicts seconds; see `equipoise list profiles`");
  add_memory_option(*command, options.max_memory_GB);
  command->add_option("--format", a->format, "table, json or csv")->capture_default_str();
  command->callback([a] {
    bound_memory(memory_limit(a->options.max_memory_GB));
    ShardCommandOptions run = a->options;
    run.lengths = parse_lengths(a->lengths, "--lengths");
    if (!a->tile.empty()) run.tile = parse_length(a->tile, "--tile");
    if (!a->block.empty()) run.block = parse_length(a->block, "--block");
    if (!a->bucket_size.empty()) run.bucket_size = parse_length(a->bucket_size, "--bucket-size");
    run.format = parse_format(a->format);
    shard_command(run, std::cout);
  });
}

}  // namespace equipoise
