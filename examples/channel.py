"""Send dicts of tensors from one process to another: a producer makes them, this process receives them.

Run: python examples/channel.py [--channel shm | mp]

`shm` is ShmChannel: one copy into shared memory, where the received tensors lie. `mp` is MpChannel, over a queue of
torch.multiprocessing. Both are used in the same way. The consumer receives one whole epoch and leaves the next one
early. Then it receives an error of the producer, with the traceback of the line that failed there.
"""

from __future__ import annotations

import argparse
import multiprocessing
from multiprocessing.synchronize import Event

import torch

import datapipes as dp

EPOCHS = 2
BATCHES = 6  # messages in an epoch
TIMEOUT_S = 60  # a working producer never takes so long


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channel", choices=["shm", "mp"], default="shm", help="what carries the messages")
    args = parser.parse_args()

    # Either channel holds four messages; a producer that is further ahead waits.
    channel = dp.ShmChannel(capacity=4, shm_size="16MB") if args.channel == "shm" else dp.MpChannel(maxsize=4)
    context = multiprocessing.get_context("spawn")
    received = context.Event()
    producer = context.Process(target=produce, args=(channel, received))  # a channel travels as an argument
    with channel:
        producer.start()
        try:
            consume(channel)
            received.set()
            producer.join(TIMEOUT_S)
        finally:
            producer.kill()  # does nothing if it has ended


def produce(channel: dp.stages.ChannelBase, received: Event) -> None:
    """Send two epochs, then an error instead of the third. Runs in the other process."""
    try:
        for epoch in range(EPOCHS + 1):
            for index in range(BATCHES):
                channel.send(make_batch(epoch, index))
            channel.end_epoch()
    except Exception as error:
        channel.send_error(error)
    received.wait(TIMEOUT_S)  # for MpChannel: its sender must live until the tensors are received


def make_batch(epoch: int, index: int) -> dict[str, torch.Tensor]:
    """Return a message: any dense tensors under any names."""
    if epoch == EPOCHS:
        raise ValueError(f"there is no data for epoch {epoch}")
    return {"features": torch.full((256, 64), float(index)), "position": torch.tensor([epoch, index])}


def consume(channel: dp.stages.ChannelBase) -> None:
    """Receive and print everything that the producer sends."""
    for message in channel.messages(timeout=TIMEOUT_S):  # `for message in channel` waits without a timeout
        show(message)
    print("epoch 0 has ended")

    for message in channel.messages(timeout=TIMEOUT_S):
        show(message)
        if int(message["position"][1]) == 2:
            break
    channel.reset()  # drops the rest of the epoch, both in the channel and still to be sent
    print("left epoch 1 early")

    try:
        channel.recv(timeout=TIMEOUT_S)
    except ValueError as error:
        print(f"the producer sent {error!r}\nwhere it failed: {str(error.__cause__).strip()}")

    if isinstance(channel, dp.ShmChannel):
        del message  # the memory of a message is reused once its tensors are gone
        print("what the channel counted:")
        for name, value in channel.stats().items():
            print(f"  {name:12s} {value:g}")


def show(message: dict[str, torch.Tensor]) -> None:
    epoch, index = message["position"].tolist()
    features = message["features"]
    print(f"epoch {epoch}, batch {index}: features {tuple(features.shape)}, mean {features.mean():g}")


if __name__ == "__main__":
    main()
