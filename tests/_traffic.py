"""Bytes that the processes of a cluster send; for tests and benchmarks."""


def count_writes():
    """Count the bytes that this process sends from now on (also runs on workers)."""
    from distributed.comm import tcp

    if hasattr(tcp, "sent"):
        return
    tcp.sent, write = 0, tcp.TCP.write

    async def counted(self, *arguments, **options):
        n_bytes = await write(self, *arguments, **options)
        tcp.sent += n_bytes or 0
        return n_bytes

    tcp.TCP.write = counted


def sent():
    from distributed.comm import tcp

    return tcp.sent
