/* The ring's indices, sleep words and doorbells (ipc/ring.hpp), for the model checker spin.

   What is checked, over every interleaving of a producer, a consumer and their two store buffers:
     - records arrive whole, once each and in order;
     - nothing is overwritten that has not been given back;
     - nobody sleeps for ever (a lost wake-up is a state that nothing leaves: spin's "invalid end
       state").

   Spin runs every step at once for all to see; a CPU does not. So a store here goes into its
   process's store buffer, a FIFO which a process of its own empties into memory at any later time
   (x86's total store order). A sequentially consistent store is a store that waits until the buffer
   is empty, as `xchg` does. No word has two writers and each end keeps its own indices in private,
   so nobody ever loads what is in its own buffer: forwarding need not be modelled.

   One unit stands for 8 bytes. The ring has 4 units and frames take 1 or 2 (half the ring, I4), the
   second with the payload's rest, so that padding is met as well. The second ring of a channel is
   the same with the ends exchanged, and shares nothing with this one.

   The producer is the sender of a record in pieces (ipc/record_channel.hpp): they go out as there is
   room for them, and the last may go where nobody expects it, while the sender prepares to sleep.

   Mutations, each of which must be found (tests/model/CMakeLists.txt):
     HEAD_UNORDERED    head is stored without waiting, then consumer_sleep is loaded     (S3, S4)
     TAIL_UNORDERED    tail is stored without waiting, then producer_wait is loaded          (d)
     SLEEP_UNORDERED   consumer_sleep is stored without waiting, then head is loaded     (S1, S2)
     WAIT_UNORDERED    producer_wait is stored without waiting, then tail is loaded          (d)
     NO_LAST_LOOK      the consumer announces its sleep and does not look once more          (c)
     NO_LOOK_AT_EMPTY  release() asks for a waiting producer at every LOOK units only
     SLEEP_WHEN_OUT    a sender whose last piece goes out as it prepares to sleep sleeps
     HEAD_FIRST        head is published before the frame is written                         (a)
     TAIL_FIRST        tail is published before the payload is read                          (b) */


#ifndef RECORDS
#define RECORDS 3
#endif
#define SIZE 4
#ifndef LOOK
#define LOOK 3      /* units given back after which release() looks for a waiting producer */
#endif

/* memory: the data, then the control words */
#define HEAD 4
#define TAIL 5
#define CONSUMER_SLEEP 6
#define PRODUCER_WAIT 7
byte memory[8];

/* contents of a unit */
#define PADDING 255
#define header_of(sequence, units) ((sequence) * 4 + (units))
#define rest_of(sequence) ((sequence) * 4 + 3)

chan producer_buffer = [4] of { byte, byte };
chan consumer_buffer = [4] of { byte, byte };
chan producer_bell = [2] of { bit };     /* the socket: what wakes the producer */
chan consumer_bell = [2] of { bit };

byte given_back = 0;                     /* units, in the consumer's own order: not in any memory */
byte early = 1;                          /* sleeps that may end for another reason */

#define store(buffer, word, value) buffer!word,value
#define store_in_order(buffer, word, value) buffer!word,value; empty(buffer)

/* MSG_DONTWAIT: a full socket has doorbells in it already. */
inline ring(bell) {
  if
  :: nfull(bell) -> bell!1
  :: full(bell) -> skip
  fi
}
inline drain(bell) {
  do
  :: nempty(bell) -> bell?_
  :: empty(bell) -> break
  od
}

active proctype ProducersStores() {
  byte word, value;
end:
  do
  :: d_step { producer_buffer?word,value -> memory[word] = value; word = 0; value = 0 }
  od
}
active proctype ConsumersStores() {
  byte word, value;
end:
  do
  :: d_step { consumer_buffer?word,value -> memory[word] = value; word = 0; value = 0 }
  od
}

#define room() (padding + units <= SIZE - (head - tail))
#define all_out() (sequence == RECORDS)

/* commit() */
inline publish() {
  assert(head + padding + units - given_back <= SIZE);
#ifdef HEAD_FIRST
  store(producer_buffer, HEAD, head + padding + units);
#endif
  if
  :: units == 2 -> store(producer_buffer, (head + padding + 1) % SIZE, rest_of(sequence))
  :: else -> skip
  fi;
  if
  :: padding > 0 -> store(producer_buffer, head % SIZE, PADDING)
  :: else -> skip
  fi;
  store(producer_buffer, (head + padding) % SIZE, header_of(sequence, units));
  head = head + padding + units;
#ifdef HEAD_UNORDERED
  store(producer_buffer, HEAD, head);
#else
  store_in_order(producer_buffer, HEAD, head);
#endif

  /* must_ring() */
  seen = memory[CONSUMER_SLEEP];
  if
  :: seen % 2 == 1 && seen != rung ->
     rung = seen;
     ring(consumer_bell)
  :: else -> skip
  fi;
  seen = 0;
  units = 0;
  sequence++
}

/* flush(): what there is room for goes out. A frame keeps its size while it waits. */
inline flush() {
  do
  :: all_out() -> break
  :: else ->
     atomic {
       if
       :: units == 0 ->
          if
          :: units = 1
          :: units = 2
          fi;
          padding = 0;
          if
          :: units > SIZE - head % SIZE -> padding = SIZE - head % SIZE
          :: else -> skip
          fi
       :: else -> skip
       fi
     };
     if
     :: room() -> skip
     :: else -> tail = memory[TAIL]
     fi;
     if
     :: room() -> publish()
     :: else -> break
     fi
  od
}

/* The sender of a record in pieces: all of them are committed at once, and it is done when the last
   one is out (ipc::send). */
active proctype Producer() {
  byte head = 0, tail = 0;               /* tail: as last seen */
  byte sequence = 0, units = 0, padding = 0, word = 0, rung = 0, seen = 0;
  do
  :: flush();
     if
     :: all_out() -> break
     :: !all_out() -> skip               /* polled */
     :: !all_out() ->
        /* prepare_sleep(), which sends on */
        flush();
        if
        :: all_out() ->
#ifdef SLEEP_WHEN_OUT
           producer_bell?_
#else
           skip                          /* no sleep: the caller looks again */
#endif
        :: else ->
           word++;
#ifdef WAIT_UNORDERED
           store(producer_buffer, PRODUCER_WAIT, word);
#else
           store_in_order(producer_buffer, PRODUCER_WAIT, word);
#endif
           tail = memory[TAIL];
           if
           :: room() -> skip
           :: else ->
              if
              :: producer_bell?_ -> skip
              :: d_step { early > 0 -> early-- }
              fi;
              drain(producer_bell)
           fi;
           word++;
           store(producer_buffer, PRODUCER_WAIT, word)    /* withdrawn */
        fi
     fi
  od
}

active proctype Consumer() {
  byte head = 0, tail = 0, looked = 0;   /* head: as last seen */
  byte expected = 0, unit = 0, units = 0, word = 0, rung = 0, seen = 0;
  do
  :: expected == RECORDS -> break
  :: else ->
     if
     :: head == tail -> head = memory[HEAD]
     :: else -> skip
     fi;
     assert(head >= tail && head - tail <= SIZE);
     if
     :: head != tail ->
        /* next() */
        unit = memory[tail % SIZE];
        if
        :: unit == PADDING ->
           assert(tail % SIZE != 0 && SIZE - tail % SIZE < head - tail);
           tail = tail + SIZE - tail % SIZE;
           unit = memory[tail % SIZE]
        :: else -> skip
        fi;
        units = unit % 4;
        assert(unit == header_of(expected, 1) || unit == header_of(expected, 2));
        assert(units <= head - tail && units <= SIZE - tail % SIZE);
#ifdef TAIL_FIRST
        given_back = tail + units;
        store(consumer_buffer, TAIL, tail + units);
#endif
        /* peek(): a reader in place looks when it likes */
        if
        :: units == 2 -> assert(memory[(tail + 1) % SIZE] == rest_of(expected))
        :: else -> skip
        fi;
        assert(memory[tail % SIZE] == unit);
        unit = 0;
        expected++;

        /* release(): tail is visible soon; whether somebody waits for it is asked now and then */
        tail = tail + units;
        units = 0;
        given_back = tail;
        if
#ifdef NO_LOOK_AT_EMPTY
        :: tail - looked >= LOOK ->
#else
        :: head == tail || tail - looked >= LOOK ->
#endif
           looked = tail;
#ifdef TAIL_UNORDERED
           store(consumer_buffer, TAIL, tail);
#else
           store_in_order(consumer_buffer, TAIL, tail);
#endif
           seen = memory[PRODUCER_WAIT];
           if
           :: seen % 2 == 1 && seen != rung ->
              rung = seen;
              ring(producer_bell)
           :: else -> skip
           fi;
           seen = 0
        :: else -> store(consumer_buffer, TAIL, tail)
        fi

     :: head == tail -> skip             /* polled: nothing */

     :: head == tail ->
        word++;
#ifdef SLEEP_UNORDERED
        store(consumer_buffer, CONSUMER_SLEEP, word);
#else
        store_in_order(consumer_buffer, CONSUMER_SLEEP, word);
#endif
#ifndef NO_LAST_LOOK
        head = memory[HEAD];
#endif
        if
        :: head != tail -> skip
        :: else ->
           if
           :: consumer_bell?_ -> skip
           :: d_step { early > 0 -> early-- }
           fi;
           drain(consumer_bell)
        fi;
        word++;
        store(consumer_buffer, CONSUMER_SLEEP, word)      /* withdrawn */
     fi
  od
}
