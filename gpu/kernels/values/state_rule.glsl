// How a head's state learns (delta_scan.comp).
VALUES(StateRule)
VALUE(kDeltaRule, kDelta, 0)  // what the state does not know yet: gated delta nets
VALUE(kSumRule, kSum, 1)      // whatever comes: Mamba-2
VALUE(kChannelRule, kChannels, 2)  // as kDeltaRule; each entry of a key has its own decay: Kimi Delta Attention
VALUES_END
