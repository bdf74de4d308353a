// How long an exchange of tokens between experts takes, by what carries it.
//
// Two forms, over what one GPU's links carry (profile/expert_routing.h): x bytes of NVLink, y bytes of its
// NIC, m messages to peers on other nodes.
//   messages-nic   NCCL's all-to-all: every pair of ranks its own message. Between nodes
//                    latency + m * message_us + p4(x / bus, y / (network_efficiency * NIC))
//                  with the network's latency and the links' bus bandwidth of the profile's other collectives
//                  (profile/collective_form.h). Two ways there: `rail-aligned`, where a message goes over
//                  NVLink to the GPU on the receiver's rail and leaves from there (NCCL's PXN), and
//                  `cross-rail`, where all NICs send to all NICs and disturb each other.
//   forwarding     DeepEP: launch_us + p4(x / (nvlink_efficiency * NVLink), y / (network_efficiency * NIC))
//                  NVLink forwards what the network still carries, so the longer of the two counts; p4 is
//                  the 4-norm, which rounds the corner between them as it does for a GEMM.
// Efficiencies are shares of the line rate of one direction, so that a fit on one board carries over to
// another with links of its own rate.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "profiler/profile/expert_routing.h"

namespace equipoise {

inline constexpr const char* kMessagesNic = "messages-nic";
inline constexpr const char* kForwarding = "forwarding";

struct MessageParameters {
  double message_us = 0;  // of each message, beside its bytes
  double network_efficiency = 1;
};

struct ForwardingParameters {
  double launch_us = 0;
  double nvlink_efficiency = 1;
  double network_efficiency = 1;
};

struct LinkRates {  // one direction, GB/s
  double nvlink = 0;
  double nic = 0;
};

// The time of two streams of which one waits for the other only at its start and end.
double pipelined_seconds(double one, double other);

// The part of an all-to-all that hangs on messages and links; `bus_GBps`: what NVLink gives collectives.
double messages_seconds(const MessageParameters& fit, const ExchangeLoad& load, double bus_GBps,
                        double nic_GBps);
double forwarding_seconds(const ForwardingParameters& fit, const ExchangeLoad& load, const LinkRates& links);

MessageParameters message_parameters(const nlohmann::json& table, const std::string& where);
ForwardingParameters forwarding_parameters(const nlohmann::json& table, const std::string& where);
nlohmann::json to_json(const MessageParameters& fit);
nlohmann::json to_json(const ForwardingParameters& fit);

}  // namespace equipoise
