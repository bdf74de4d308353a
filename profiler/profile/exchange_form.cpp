#include "profiler/profile/exchange_form.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "profiler/profile/json_fields.h"

namespace equipoise {
namespace {

constexpr FormParameter<MessageParameters> kMessageParameters[] = {
    {"message_us", &MessageParameters::message_us},
    {"network_efficiency", &MessageParameters::network_efficiency, kPositive},
};

constexpr FormParameter<ForwardingParameters> kForwardingParameters[] = {
    {"launch_us", &ForwardingParameters::launch_us},
    {"nvlink_efficiency", &ForwardingParameters::nvlink_efficiency, kPositive},
    {"network_efficiency", &ForwardingParameters::network_efficiency, kPositive},
};

double seconds_at(double bytes, double GBps) {
  return bytes > 0 ? bytes * 1e-9 / GBps : 0;
}

}  // namespace

double pipelined_seconds(double one, double other) {
  return std::pow(std::pow(one, 4) + std::pow(other, 4), 0.25);
}

double messages_seconds(const MessageParameters& fit, const ExchangeLoad& load, double bus_GBps,
                        double nic_GBps) {
  return 1e-6 * fit.message_us * load.messages +
         pipelined_seconds(seconds_at(load.node_bytes, bus_GBps),
                           seconds_at(load.network_bytes, fit.network_efficiency * nic_GBps));
}

double forwarding_seconds(const ForwardingParameters& fit, const ExchangeLoad& load, const LinkRates& links) {
  return 1e-6 * fit.launch_us +
         pipelined_seconds(seconds_at(load.node_bytes, fit.nvlink_efficiency * links.nvlink),
                           seconds_at(load.network_bytes, fit.network_efficiency * links.nic));
}

MessageParameters message_parameters(const nlohmann::json& table, const std::string& where) {
  return parameters_of(kMessageParameters, table, where);
}

ForwardingParameters forwarding_parameters(const nlohmann::json& table, const std::string& where) {
  return parameters_of(kForwardingParameters, table, where);
}

nlohmann::json to_json(const MessageParameters& fit) {
  return parameters_json(kMessageParameters, fit);
}

nlohmann::json to_json(const ForwardingParameters& fit) {
  return parameters_json(kForwardingParameters, fit);
}

}  // namespace equipoise
